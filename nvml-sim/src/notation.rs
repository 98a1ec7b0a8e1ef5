//! Values that the machine file writes as text: addresses, processors, capabilities.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address on the PCI bus; the function is always 0, as GPUs have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04X}:{:02X}:{:02X}.0",
            self.domain, self.bus, self.device
        )
    }
}

impl FromStr for PciAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (front, function) = text.rsplit_once('.')?;
            let (front, device) = front.rsplit_once(':')?;
            let (domain, bus) = front.rsplit_once(':').unwrap_or(("0", front));
            (u8::from_str_radix(function, 16).ok()? == 0).then_some(Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
            })
        };
        parse().ok_or_else(|| format!("{text:?} is no PCI address; write it as 0000:1A:00.0"))
    }
}

/// Processors, written as `0-55,112-167`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// More processors than any machine has, so that `0-4000000000` can't fill the memory.
const CPUS_MAX: u32 = 8192;

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(&first) = rest.first() {
            let length = rest
                .iter()
                .zip(first..)
                .take_while(|(cpu, wanted)| **cpu == *wanted)
                .count();
            let last = rest[length - 1];
            if last == first {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
            rest = &rest[length..];
        }
        Ok(())
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no list of processors; write it as 0-55,112-167, under {CPUS_MAX}")
        };
        let mut cpus = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (
                first.trim().parse().map_err(|_| wrong())?,
                last.trim().parse().map_err(|_| wrong())?,
            );
            if first > last || last >= CPUS_MAX {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus.into_iter().collect()))
    }
}

/// CUDA's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ComputeCapability {
    pub major: i32,
    pub minor: i32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (major, minor) = text.split_once('.')?;
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        };
        parse().ok_or_else(|| format!("{text:?} is no compute capability; write it as 9.0"))
    }
}

macro_rules! written_as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

written_as_text!(PciAddress, CpuList, ComputeCapability);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_each_form_that_nvml_writes() {
        let wanted = PciAddress {
            domain: 0,
            bus: 0x1A,
            device: 0,
        };
        for text in [
            "0000:1A:00.0",
            "00000000:1A:00.0",
            "0000:1a:00.0",
            "1A:00.0",
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        for text in ["", "1A", "0000:1A:00", "0000:1A:00.1", "zzzz:1A:00.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_processors_are_read_and_written_alike() {
        for text in ["0-55,112-167", "3", "0,2,4-5", ""] {
            assert_eq!(
                text.parse::<CpuList>().map(|list| list.to_string()),
                Ok(text.to_owned())
            );
        }
        assert!("5-1".parse::<CpuList>().is_err());
        assert!("0-4000000000".parse::<CpuList>().is_err());
    }
}
