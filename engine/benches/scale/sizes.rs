//! What the tasks of the openb trace ask for, as a small table: the thirty most frequent kinds of
//! its default list, and the most frequent of those for several GPUs.

/// One kind of task.
pub struct Size {
    /// Thousandths of a GPU; a whole device or several from 1000 on.
    pub milli: i64,
    /// Thousandths of a core.
    pub cpus: i64,
    /// Memory of the host in MiB.
    pub memory: i64,
    /// How many of the list's 8,152 tasks are of the kind.
    pub count: u64,
}

const fn size(milli: i64, cpus: i64, memory: i64, count: u64) -> Size {
    Size {
        milli,
        cpus,
        memory,
        count,
    }
}

/// Nine in ten of the list's tasks.
pub const SIZES: &[Size] = &[
    size(810, 3_152, 5_600, 1047),
    size(1000, 11_300, 49_152, 857),
    size(1000, 11_400, 48_128, 534),
    size(1000, 3_152, 5_600, 470),
    size(470, 11_908, 47_104, 388),
    size(0, 12_500, 57_344, 364),
    size(470, 8_000, 30_517, 360),
    size(0, 32_000, 49_152, 284),
    size(1000, 18_708, 64_512, 255),
    size(650, 11_908, 47_104, 237),
    size(1000, 9_810, 41_560, 195),
    size(0, 8_000, 30_517, 163),
    size(1000, 12_000, 24_576, 158),
    size(1000, 15_700, 58_368, 158),
    size(1000, 11_908, 47_104, 153),
    size(0, 15_400, 51_200, 120),
    size(320, 4_000, 22_888, 111),
    size(1000, 16_000, 32_768, 108),
    size(1000, 8_000, 16_384, 104),
    size(1000, 4_000, 24_576, 104),
    size(1000, 12_000, 16_384, 99),
    size(0, 16_500, 51_200, 95),
    size(1000, 14_200, 58_368, 93),
    size(230, 4_000, 30_517, 84),
    size(1000, 24_200, 93_184, 84),
    size(320, 4_000, 15_258, 78),
    size(590, 3_152, 5_600, 75),
    size(320, 8_000, 30_517, 72),
    size(550, 4_152, 10_600, 72),
    size(1000, 11_400, 77_824, 65),
    size(8000, 88_000, 327_680, 18),
    size(8000, 64_200, 263_168, 18),
    size(4000, 32_200, 132_096, 9),
    size(2000, 16_200, 66_560, 7),
    size(8000, 120_000, 737_280, 3),
];
