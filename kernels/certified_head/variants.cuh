// Every compiled shape of the second launch: name, (digits of all rows), warpgroups, units of 64 tokens each, most slots.
// 4x1 is what is used; the others are built to be measured beside it (README.md).
static const Variant kVariants[] = {
#if ON_GPU
    FEW_ROWS("4x1", 4, 1, 5),
    VARIANT("4x1", 128, 4, 1, 4),
#ifdef CERTIFIED_HEAD_ALL
    FEW_ROWS("4x2", 4, 2, 3),
    FEW_ROWS("3x2", 3, 2, 4),
    FEW_ROWS("4x1s4", 4, 1, 4),
    FEW_ROWS("4x1s6", 4, 1, 6),
    FEW_ROWS("2x2", 2, 2, 5),
    FEW_ROWS("2x4", 2, 4, 3),
    VARIANT("2x2", 128, 2, 2, 4),
    VARIANT("4x1_no_end", 8, 4, 1, 5, kNoEnd),
    VARIANT("4x1_stream_only", 8, 4, 1, 5, kStreamOnly),
    VARIANT("4x1_no_end", 64, 4, 1, 5, kNoEnd),
    VARIANT("4x1_stream_only", 64, 4, 1, 5, kStreamOnly),
    VARIANT("3x2_no_end", 64, 3, 2, 4, kNoEnd),
    VARIANT("3x2_stream_only", 64, 3, 2, 4, kStreamOnly),
    VARIANT("4x2_stream_only", 64, 4, 2, 3, kStreamOnly),
#endif
#else
    VARIANT("4x1", 8, 4, 1, 4),
    VARIANT("3x2", 64, 3, 2, 4),
    VARIANT("2x2", 128, 2, 2, 4),
#endif
};
