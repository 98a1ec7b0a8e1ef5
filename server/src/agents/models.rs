//! Device models: what requests call a GPU, by the name that NVML gives it.

/// Models that NVML has several names for, as the table of MIG profiles groups them.
const MODELS: &[(&str, &[&str])] = &[
    ("A30-24GB", &["NVIDIA A30"]),
    (
        "A100-40GB",
        &[
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A800 40GB",
        ],
    ),
    (
        "A100-80GB",
        &[
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A800 80GB",
        ],
    ),
    (
        "H100-80GB",
        &["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H800"],
    ),
    (
        "H100-NVL-94GB",
        &[
            "NVIDIA H100 NVL",
            "NVIDIA H800 NVL",
            "NVIDIA H100 SXM5 94GB",
        ],
    ),
    (
        "H100-96GB",
        &[
            "NVIDIA GH200 480GB (96GB HBM3)",
            "NVIDIA H100 96GB",
            "NVIDIA H20",
            "PG506-96GB",
        ],
    ),
    ("H200-141GB", &["NVIDIA H200", "NVIDIA H200 NVL"]),
    ("GH200-144GB", &["NVIDIA GH200 144G HBM3e"]),
    ("B200-180GB", &["NVIDIA B200"]),
    ("GB200-186GB", &["NVIDIA GB200"]),
    ("B300-269GB", &["NVIDIA B300"]),
    ("GB300-278GB", &["NVIDIA GB300"]),
    (
        "RTX-PRO-6000-Blackwell-96GB",
        &[
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ],
    ),
];

/// The model of a product: the group that its name is in, else the name without "NVIDIA".
pub fn of_product(product_name: &str) -> String {
    MODELS
        .iter()
        .find(|(_, names)| names.contains(&product_name))
        .map_or_else(
            || product_name.trim_start_matches("NVIDIA").trim().to_owned(),
            |(model, _)| (*model).to_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_known_by_its_group_or_by_its_own_name() {
        assert_eq!(of_product("NVIDIA H100 80GB HBM3"), "H100-80GB");
        assert_eq!(of_product("NVIDIA L40S"), "L40S");
        assert_eq!(of_product("Tesla T4"), "Tesla T4");
    }
}
