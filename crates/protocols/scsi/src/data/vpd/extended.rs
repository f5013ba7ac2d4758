//! The Extended INQUIRY Data page, 86h (SPC-4 §7.8.7).

/// The page of a unit without protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExtendedInquiry {
    /// UASK_SUP: sense key specific data with unit attentions.
    pub unit_attention_specific: bool,
    /// GROUP_SUP: the grouping function.
    pub grouping: bool,
    /// PRIOR_SUP: command priority.
    pub priority: bool,
    /// HEADSUP: the HEAD OF QUEUE attribute.
    pub head_of_queue: bool,
    /// ORDSUP: the ORDERED attribute.
    pub ordered: bool,
    /// SIMPSUP: the SIMPLE attribute.
    pub simple: bool,
    /// V_SUP: a volatile cache.
    pub volatile_cache: bool,
    /// NV_SUP: a non-volatile cache.
    pub non_volatile_cache: bool,
    /// LUICLR: a unit attention on one I_T nexus never clears that on another.
    pub nexus_clears: bool,
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH in bytes; 0 means 252 or less.
    pub max_sense_len: u8,
}

impl ExtendedInquiry {
    /// The body, 60 bytes.
    pub fn body(&self) -> Vec<u8> {
        let mut out = vec![0; 60];
        out[1] = u8::from(self.unit_attention_specific) << 5
            | u8::from(self.grouping) << 4
            | u8::from(self.priority) << 3
            | u8::from(self.head_of_queue) << 2
            | u8::from(self.ordered) << 1
            | u8::from(self.simple);
        out[2] = u8::from(self.non_volatile_cache) << 1 | u8::from(self.volatile_cache);
        out[3] = u8::from(self.nexus_clears);
        out[9] = self.max_sense_len;
        out
    }

    /// Reads the body.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let b: &[u8; 10] = body.first_chunk()?;
        Some(Self {
            unit_attention_specific: b[1] & 0x20 != 0,
            grouping: b[1] & 0x10 != 0,
            priority: b[1] & 0x08 != 0,
            head_of_queue: b[1] & 0x04 != 0,
            ordered: b[1] & 0x02 != 0,
            simple: b[1] & 0x01 != 0,
            non_volatile_cache: b[2] & 0x02 != 0,
            volatile_cache: b[2] & 0x01 != 0,
            nexus_clears: b[3] & 0x01 != 0,
            max_sense_len: b[9],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::vpd;

    #[test]
    fn the_page_is_64_bytes_and_its_flags_are_where_spc_4_puts_them() {
        let data = ExtendedInquiry {
            head_of_queue: true,
            ordered: true,
            simple: true,
            volatile_cache: true,
            nexus_clears: true,
            max_sense_len: 44,
            ..ExtendedInquiry::default()
        };
        let page = vpd::emit(0, vpd::EXTENDED_INQUIRY, &data.body());
        assert_eq!(page[..14], [0, 0x86, 0, 0x3C, 0, 0x07, 0x01, 0x01, 0, 0, 0, 0, 0, 44]);
        assert_eq!(page.len(), 64);
        assert_eq!(ExtendedInquiry::parse(&page[4..]), Some(data));
        assert_eq!(ExtendedInquiry::parse(&page[4..13]), None);
    }
}
