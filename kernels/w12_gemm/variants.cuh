// Every compiled variant: name, (rows), records side by side, blocks that must fit on a multiprocessor, most stages.
// `Config` in sm90.cuh has the reasons, README.md the measurements.
static const Entry kEntries[] = {
    ODD_ROWS("wide4", 2, 1, 4),
    EVEN_ROWS("wide4", 2, 1, 4),
    LARGE_ROWS("wide4", 2, 1, 4),
    ODD_ROWS("slim6", 1, 2, 6),
    EVEN_ROWS("slim6", 1, 2, 6),
    LARGE_ROWS("tall", 1, 1, 6),
    HUGE_ROWS("tall", 1, 1, 6),
#ifdef W12_ABLATIONS
    ENTRY("wide4_no_patch", 8, 2, 1, 4, kNoPatch),
    ENTRY("wide4_no_decode", 8, 2, 1, 4, kNoDecode),
    ENTRY("wide4_no_mma", 8, 2, 1, 4, kNoMma),
    ENTRY("wide4_stream_only", 8, 2, 1, 4, kStreamOnly),
    ENTRY("wide4_trace", 8, 2, 1, 4, kTrace),
    ENTRY("slim6_trace", 8, 1, 2, 6, kTrace),
    ENTRY("wide4_no_patch", 32, 2, 1, 4, kNoPatch),
    ENTRY("wide4_no_decode", 32, 2, 1, 4, kNoDecode),
    ENTRY("wide4_no_mma", 32, 2, 1, 4, kNoMma),
    ENTRY("wide4_stream_only", 32, 2, 1, 4, kStreamOnly),
    ENTRY("wide4_trace", 32, 2, 1, 4, kTrace),
    ENTRY("slim6_trace", 32, 1, 2, 6, kTrace),
#endif
};
