//! The types of virtual GPUs that cards can be given out as. Names and sizes are those of NVIDIA's tables
//! for time-sliced types; the numbers are the simulator's own.

/// A type of virtual GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VgpuType {
    pub id: u32,
    pub name: String,
    pub class: &'static str,
    pub license: &'static str,
    pub memory_mib: u64,
    /// How many of them a device has room for.
    pub instances_max: u32,
}

/// A series of types of one card.
struct Series {
    product: &'static str,
    label: &'static str,
    letter: char,
    gib: &'static [u64],
    /// What all types of a device take together, in GiB.
    whole_gib: u64,
}

/// Most virtual GPUs of one device, however small.
const INSTANCES_MAX: u64 = 32;
const MIB_PER_GIB: u64 = 1024;
/// Numbers of types begin here.
const FIRST_ID: usize = 1000;
/// Types of one series at most: the next begins so much later.
const SERIES_STEP: usize = 100;

const SERIES: [Series; 6] = [
    Series {
        product: "NVIDIA L40S",
        label: "L40S",
        letter: 'Q',
        gib: &[1, 2, 3, 4, 6, 8, 12, 16, 24, 48],
        whole_gib: 48,
    },
    Series {
        product: "NVIDIA L40S",
        label: "L40S",
        letter: 'C',
        gib: &[4, 6, 8, 12, 16, 24, 48],
        whole_gib: 48,
    },
    Series {
        product: "NVIDIA A100-SXM4-80GB",
        label: "A100DX",
        letter: 'C',
        gib: &[4, 8, 10, 16, 20, 40, 80],
        whole_gib: 80,
    },
    Series {
        product: "NVIDIA A100 80GB PCIe",
        label: "A100D",
        letter: 'C',
        gib: &[4, 8, 10, 16, 20, 40, 80],
        whole_gib: 80,
    },
    Series {
        product: "NVIDIA H100 80GB HBM3",
        label: "H100XM",
        letter: 'C',
        gib: &[4, 5, 8, 10, 16, 20, 40, 80],
        whole_gib: 80,
    },
    Series {
        product: "NVIDIA A30",
        label: "A30",
        letter: 'C',
        gib: &[4, 6, 8, 12, 24],
        whole_gib: 24,
    },
];

/// All types of a card, by its name.
pub(crate) fn of_product(product: &str) -> Vec<VgpuType> {
    let series = SERIES.iter().enumerate();
    series
        .filter(|(_, series)| series.product == product)
        .flat_map(|(at, series)| series.types(at))
        .collect()
}

/// A type by its number.
pub(crate) fn of_id(id: u32) -> Option<VgpuType> {
    let mut series = SERIES.iter().enumerate();
    series.find_map(|(at, series)| series.types(at).find(|kind| kind.id == id))
}

impl Series {
    fn types(&self, at: usize) -> impl Iterator<Item = VgpuType> {
        let (class, license) = match self.letter {
            'Q' => ("Quadro", "NVIDIA RTX Virtual Workstation,5.0"),
            _ => ("Compute", "NVIDIA Virtual Compute Server,9.0"),
        };
        self.gib
            .iter()
            .enumerate()
            .map(move |(place, gib)| VgpuType {
                id: u32::try_from(FIRST_ID + at * SERIES_STEP + place).unwrap_or(u32::MAX),
                name: format!("NVIDIA {}-{gib}{}", self.label, self.letter),
                class,
                license,
                memory_mib: gib * MIB_PER_GIB,
                instances_max: u32::try_from((self.whole_gib / gib).min(INSTANCES_MAX))
                    .unwrap_or(1),
            })
    }
}
