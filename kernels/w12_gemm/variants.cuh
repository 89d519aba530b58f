// Every compiled variant: name, (rows), records side by side, blocks that must fit on a multiprocessor, most stages, bytes
// of a record. `Config` in sm90.cuh has the reasons, README.md the measurements.
static const Entry kEntries[] = {
    ODD_ROWS("wide4", 2, 1, 4),
    EVEN_ROWS("wide4", 2, 1, 4),
    ODD_ROWS("slim6", 1, 2, 6),
    ENTRY("slim6", 16, 1, 2, 6),
    ENTRY("slim6", 32, 1, 2, 6),
    LARGE_ROWS("tall", 1, 1, 6),
    HUGE_ROWS("tall", 1, 1, 6),
    ODD_ROWS("view6", 2, 1, 6, kViewBytes),
    EVEN_ROWS("view6", 2, 1, 6, kViewBytes),
#ifdef W12_ABLATIONS
    ENTRY("view6_stream_only", 8, 2, 1, 6, kViewBytes, kStreamOnly),
    ENTRY("slim6_no_mma", 8, 1, 2, 6, kRecordBytes, kNoMma),
    ENTRY("slim6_no_decode", 8, 1, 2, 6, kRecordBytes, kNoDecode),
    ENTRY("view6_no_mma", 8, 2, 1, 6, kViewBytes, kNoMma),
    ENTRY("view6_no_decode", 8, 2, 1, 6, kViewBytes, kNoDecode),
    ENTRY("wide4_no_patch", 8, 2, 1, 4, kRecordBytes, kNoPatch),
    ENTRY("wide4_no_decode", 8, 2, 1, 4, kRecordBytes, kNoDecode),
    ENTRY("wide4_no_mma", 8, 2, 1, 4, kRecordBytes, kNoMma),
    ENTRY("wide4_stream_only", 8, 2, 1, 4, kRecordBytes, kStreamOnly),
    ENTRY("wide4_trace", 8, 2, 1, 4, kRecordBytes, kTrace),
    ENTRY("slim6_trace", 8, 1, 2, 6, kRecordBytes, kTrace),
    ENTRY("slim6_stream_only", 8, 1, 2, 6, kRecordBytes, kStreamOnly),
    ENTRY("wide4_no_patch", 32, 2, 1, 4, kRecordBytes, kNoPatch),
    ENTRY("wide4_no_decode", 32, 2, 1, 4, kRecordBytes, kNoDecode),
    ENTRY("wide4_no_mma", 32, 2, 1, 4, kRecordBytes, kNoMma),
    ENTRY("wide4_stream_only", 32, 2, 1, 4, kRecordBytes, kStreamOnly),
    ENTRY("wide4_trace", 32, 2, 1, 4, kRecordBytes, kTrace),
    ENTRY("slim6_trace", 32, 1, 2, 6, kRecordBytes, kTrace),
    ENTRY("slim6_stream_only", 32, 1, 2, 6, kRecordBytes, kStreamOnly),
#endif
};
