// Every compiled variant: name, (rows), records side by side, blocks in a cluster, blocks that must fit on a
// multiprocessor, blocks launched on each, most stages. `Config` in sm90.cuh has the reasons.
static const Entry kEntries[] = {
    ODD_ROWS("wide5", 2, 1, 1, 1, 5),
    EVEN_ROWS("wide5", 2, 1, 1, 1, 5),
    ODD_ROWS("wide4", 2, 1, 1, 1, 4),
    EVEN_ROWS("wide4", 2, 1, 1, 1, 4),
    ODD_ROWS("wide3", 2, 1, 1, 1, 3),
    EVEN_ROWS("wide3", 2, 1, 1, 1, 3),
    EVEN_ROWS("wide4_pair", 2, 2, 1, 1, 4),
    ENTRY("wide4_quad", 32, 2, 4, 1, 1, 4),
    ENTRY("wide4_quad", 64, 2, 4, 1, 1, 4),
    ODD_ROWS("slim", 1, 1, 2, 1, 16),
    EVEN_ROWS("slim", 1, 1, 2, 1, 16),
    ODD_ROWS("slim5", 1, 1, 2, 1, 5),
    EVEN_ROWS("slim5", 1, 1, 2, 1, 5),
    EVEN_ROWS("slim5_pair", 1, 2, 1, 1, 5),
    LARGE_ROWS("tall", 1, 1, 1, 1, 4),
    HUGE_ROWS("tall", 1, 1, 1, 1, 4),
    LARGE_ROWS("tall_pair", 1, 2, 1, 1, 4),
    HUGE_ROWS("tall_pair", 1, 2, 1, 1, 4),
#ifdef W12_ABLATIONS
    ENTRY("wide4_no_decode", 8, 2, 1, 1, 1, 4, kNoDecode),
    ENTRY("wide4_no_mma", 8, 2, 1, 1, 1, 4, kNoMma),
    ENTRY("wide4_stream_only", 8, 2, 1, 1, 1, 4, kStreamOnly),
    ENTRY("wide4_trace", 8, 2, 1, 1, 1, 4, kTrace),
    ENTRY("slim5_trace", 8, 1, 1, 2, 1, 5, kTrace),
    ENTRY("wide4_no_decode", 32, 2, 1, 1, 1, 4, kNoDecode),
    ENTRY("wide4_no_mma", 32, 2, 1, 1, 1, 4, kNoMma),
    ENTRY("wide4_stream_only", 32, 2, 1, 1, 1, 4, kStreamOnly),
    ENTRY("wide4_trace", 32, 2, 1, 1, 1, 4, kTrace),
    ENTRY("slim5_trace", 32, 1, 1, 2, 1, 5, kTrace),
#endif
};
