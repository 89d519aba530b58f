// Every compiled variant: name, then rows, records side by side, blocks in a cluster, blocks on a multiprocessor, stages.
static const Entry kEntries[] = {
    SMALL_ROWS("wide", 2, 1, 1, 16),
    EVEN_ROWS("wide", 2, 1, 1, 16),
    LARGE_ROWS("wide", 2, 1, 1, 16),
    EVEN_ROWS("wide_pair", 2, 2, 1, 16),
    LARGE_ROWS("wide_pair", 2, 2, 1, 16),
    SMALL_ROWS("slim", 1, 1, 1, 16),
    EVEN_ROWS("slim", 1, 1, 1, 16),
    LARGE_ROWS("slim", 1, 1, 1, 16),
    HUGE_ROWS("slim", 1, 1, 1, 16),
    HUGE_ROWS("slim_pair", 1, 2, 1, 16),
    SMALL_ROWS("slim_two", 1, 1, 2, 16),
    EVEN_ROWS("slim_two", 1, 1, 2, 16),
    EVEN_ROWS("slim_two_pair", 1, 2, 2, 16),
#ifdef W12_ABLATIONS
    ENTRY("wide_4_stages", 8, 2, 1, 1, 4),
    ENTRY("wide_no_decode", 8, 2, 1, 1, 16, kNoDecode),
    ENTRY("wide_no_mma", 8, 2, 1, 1, 16, kNoMma),
    ENTRY("wide_stream_only", 8, 2, 1, 1, 16, kStreamOnly),
    ENTRY("wide_4_stages", 32, 2, 1, 1, 4),
    ENTRY("wide_no_decode", 32, 2, 1, 1, 16, kNoDecode),
    ENTRY("wide_no_mma", 32, 2, 1, 1, 16, kNoMma),
    ENTRY("wide_stream_only", 32, 2, 1, 1, 16, kStreamOnly),
#endif
};
