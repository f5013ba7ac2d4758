//! Mode parameters for an initiator: reads MODE SENSE data and writes MODE SELECT lists.

/// MODE SENSE data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeData {
    /// WP: the medium is write-protected.
    pub write_protected: bool,
    /// DPOFUA: DPO and FUA are supported.
    pub dpo_fua: bool,
    /// The pages: code, subpage, and the bytes after the page's header.
    pub pages: Vec<(u8, u8, Vec<u8>)>,
}

impl ModeData {
    /// Reads the data of MODE SENSE (6), or with `long` (10), up to the first truncated page.
    pub fn parse(bytes: &[u8], long: bool) -> Option<Self> {
        let (len, device_specific, descriptor, at) = if long {
            let h: &[u8; 8] = bytes.first_chunk()?;
            (2 + usize::from(u16::from_be_bytes([h[0], h[1]])), h[3], u16::from_be_bytes([h[6], h[7]]), 8)
        } else {
            let h: &[u8; 4] = bytes.first_chunk()?;
            (1 + usize::from(h[0]), h[2], u16::from(h[3]), 4)
        };
        let bytes = &bytes[..bytes.len().min(len)];
        let mut rest = bytes.get(at + usize::from(descriptor)..).unwrap_or(&[]);
        let mut pages = Vec::new();
        while let Some((code, subpage, values, next)) = split_page(rest) {
            pages.push((code, subpage, values.to_vec()));
            rest = next;
        }
        Some(Self {
            write_protected: device_specific & 0x80 != 0,
            dpo_fua: device_specific & 0x10 != 0,
            pages,
        })
    }

    /// The values of a page.
    pub fn page(&self, code: u8, subpage: u8) -> Option<&[u8]> {
        self.pages.iter().find(|p| (p.0, p.1) == (code, subpage)).map(|p| p.2.as_slice())
    }

    /// WCE, if the data has the Caching page.
    pub fn write_cache(&self) -> Option<bool> {
        let (byte, mask) = super::table::WCE;
        Some(self.page(super::CACHING, 0)?.get(byte)? & mask != 0)
    }
}

fn split_page(bytes: &[u8]) -> Option<(u8, u8, &[u8], &[u8])> {
    let code = bytes.first()? & 0x3F;
    let (subpage, len, body) = if bytes[0] & 0x40 != 0 {
        let (h, body) = bytes.split_first_chunk::<4>()?;
        (h[1], usize::from(u16::from_be_bytes([h[2], h[3]])), body)
    } else {
        let (h, body) = bytes.split_first_chunk::<2>()?;
        (0, usize::from(h[1]), body)
    };
    let (values, rest) = body.split_at_checked(len)?;
    Some((code, subpage, values, rest))
}

/// The parameter list of a MODE SELECT (6), or with `long` (10), that sets one page (of subpage
/// 00h) and has no block descriptor. Truncates values beyond 255 bytes.
pub fn select_list(code: u8, values: &[u8], long: bool) -> Vec<u8> {
    let values = &values[..values.len().min(255)];
    let mut out = vec![0; if long { 8 } else { 4 }];
    out.extend([code & 0x3F, values.len() as u8]);
    out.extend(values);
    out
}
