//! Devices in a row that are held alike, as one line.

/// Devices that follow one another and are held alike.
#[derive(Debug)]
pub(super) struct HeldAlike<'a, Device> {
    /// The first of them.
    pub(super) first: &'a Device,
    /// How many they are.
    pub(super) count: usize,
    /// Their indices, such as `0–3`.
    pub(super) indices: String,
    /// What is held of all of them, in thousandths.
    pub(super) milli: u32,
}

/// Groups devices; `size` is the index of one and the thousandths held of it, `alike` whether two
/// are held alike.
pub(super) fn alike<'a, Device>(
    devices: &'a [Device],
    size: impl Fn(&Device) -> (u32, u32),
    alike: impl Fn(&Device, &Device) -> bool,
) -> Vec<HeldAlike<'a, Device>> {
    let rows = devices.chunk_by(|a, b| size(a).0 + 1 == size(b).0 && alike(a, b));
    rows.filter_map(|row| {
        let (first, last) = (row.first()?, size(row.last()?).0);
        Some(HeldAlike {
            first,
            count: row.len(),
            indices: if size(first).0 == last {
                last.to_string()
            } else {
                format!("{}–{last}", size(first).0)
            },
            milli: row.iter().map(|device| size(device).1).sum(),
        })
    })
    .collect()
}
