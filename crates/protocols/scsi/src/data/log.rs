//! Log pages (SPC-4 §7.3, SBC-3 §6.4): the supported pages, informational exceptions, logical block
//! provisioning.

use super::Fields;
use crate::Sense;
use crate::cdb::LogSense;

/// Page code of the list of supported pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Page code of logical block provisioning.
pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0C;
/// Page code of informational exceptions.
pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x2F;

/// Values of the logical block provisioning page, in threshold sets. A set has 2 to the THRESHOLD
/// EXPONENT blocks (Logical Block Provisioning VPD page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioning {
    /// AVAILABLE LBA MAPPING RESOURCE COUNT.
    pub available: u32,
    /// USED LBA MAPPING RESOURCE COUNT.
    pub used: u32,
    /// Whether the available resources are dedicated to this unit (SCOPE). The used resources
    /// always are.
    pub dedicated: bool,
}

/// One log parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// PARAMETER CODE.
    pub code: u16,
    /// The control byte; FORMAT AND LINKING is its low two bits.
    pub control: u8,
    /// PARAMETER VALUE, at most 255 bytes.
    pub value: Vec<u8>,
}

/// FORMAT AND LINKING: a binary list parameter.
const BINARY_LIST: u8 = 0x03;

/// Answers LOG SENSE; `provisioning` is `None` for units that are not thin.
///
/// # Errors
/// INVALID FIELD IN CDB for unknown pages, for saving, and for a PARAMETER POINTER beyond the page.
pub fn sense(request: &LogSense, provisioning: Option<Provisioning>) -> Result<Vec<u8>, Sense> {
    if request.save {
        return Err(Sense::invalid_field_in_cdb(1, Some(0)));
    }
    let mut pages = vec![SUPPORTED_PAGES];
    if provisioning.is_some() {
        pages.push(LOGICAL_BLOCK_PROVISIONING);
    }
    pages.push(INFORMATIONAL_EXCEPTIONS);
    if !pages.contains(&request.page) {
        return Err(Sense::invalid_field_in_cdb(2, Some(5)));
    }
    let parameters = match (request.page, request.subpage) {
        (SUPPORTED_PAGES, 0) if request.pointer == 0 => return Ok(emit(SUPPORTED_PAGES, 0, &pages)),
        (SUPPORTED_PAGES, 0xFF) if request.pointer == 0 => {
            // All pages with their subpages, including subpage FFh of this page.
            let pairs = pages.iter().flat_map(|&p| [p, 0]);
            let list: Vec<u8> = [0, 0, 0, 0xFF].into_iter().chain(pairs.skip(2)).collect();
            return Ok(emit(SUPPORTED_PAGES, 0xFF, &list));
        }
        (SUPPORTED_PAGES, 0 | 0xFF) => return Err(Sense::invalid_field_in_cdb(5, None)),
        (INFORMATIONAL_EXCEPTIONS, 0) => {
            // No exception; the temperature is unknown (FFh), and so is its threshold, which many
            // devices append.
            vec![Parameter { code: 0, control: BINARY_LIST, value: vec![0, 0, 0xFF, 0xFF] }]
        }
        (LOGICAL_BLOCK_PROVISIONING, 0) => {
            let count = |code, count: u32, dedicated: bool| {
                let [a, b, c, d] = count.to_be_bytes();
                let scope = if dedicated { 1 } else { 2 };
                Parameter { code, control: BINARY_LIST, value: vec![a, b, c, d, scope, 0, 0, 0] }
            };
            provisioning
                .iter()
                .flat_map(|p| [count(1, p.available, p.dedicated), count(2, p.used, true)])
                .collect()
        }
        _ => return Err(Sense::invalid_field_in_cdb(3, None)),
    };
    let from = request.pointer;
    if parameters.iter().all(|p| p.code < from) {
        return Err(Sense::invalid_field_in_cdb(5, None));
    }
    let mut body = Vec::new();
    for p in parameters.iter().filter(|p| p.code >= from) {
        body.extend(p.code.to_be_bytes());
        body.extend([p.control, p.value.len() as u8]);
        body.extend(&p.value);
    }
    Ok(emit(request.page, request.subpage, &body))
}

fn emit(page: u8, subpage: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![page | if subpage == 0 { 0 } else { 0x40 }, subpage]; // SPF
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
    out
}

/// The page and subpage code of a log page, and its body.
pub fn parse(bytes: &[u8]) -> Option<(u8, u8, &[u8])> {
    let len = usize::from(Fields(bytes).u16(2)?);
    let body = bytes.get(4..)?;
    let subpage = if bytes[0] & 0x40 != 0 { bytes[1] } else { 0 };
    Some((bytes[0] & 0x3F, subpage, &body[..body.len().min(len)]))
}

/// The parameters in a page's body, up to the first truncated one.
pub fn parse_parameters(mut body: &[u8]) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    while let Some((&[high, low, control, len], rest)) = body.split_first_chunk::<4>() {
        let Some((value, rest)) = rest.split_at_checked(usize::from(len)) else { break };
        parameters.push(Parameter { code: u16::from_be_bytes([high, low]), control, value: value.to_vec() });
        body = rest;
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::{Command, decode};
    use crate::cdb::{PageControl, build};

    const THIN: Option<Provisioning> = Some(Provisioning { available: 0x0102, used: 3, dedicated: false });

    fn request(page: u8, subpage: u8) -> LogSense {
        match decode(&build::log_sense(page, subpage, 512)) {
            Ok(Command::LogSense(r)) => r,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_supported_pages_depend_on_the_unit() {
        assert_eq!(sense(&request(0, 0), THIN).unwrap(), [0, 0, 0, 3, 0, 0x0C, 0x2F]);
        assert_eq!(sense(&request(0, 0), None).unwrap(), [0, 0, 0, 2, 0, 0x2F]);
        assert_eq!(
            sense(&request(0, 0xFF), THIN).unwrap(),
            [0x40, 0xFF, 0, 8, 0, 0, 0, 0xFF, 0x0C, 0, 0x2F, 0]
        );
    }

    #[test]
    fn every_supported_page_can_be_read_and_no_other() {
        let pages = sense(&request(0, 0), THIN).unwrap()[4..].to_vec();
        for page in 0..0x40 {
            assert_eq!(sense(&request(page, 0), THIN).is_ok(), pages.contains(&page), "{page:02X}");
        }
        assert_eq!(sense(&request(0x2F, 1), THIN), Err(Sense::invalid_field_in_cdb(3, None)));
        assert_eq!(sense(&request(0x0C, 0), None), Err(Sense::invalid_field_in_cdb(2, Some(5))));
    }

    #[test]
    fn the_parameter_pointer_skips_parameters_and_may_not_skip_all() {
        let mut r = request(0x0C, 0);
        let data = sense(&r, THIN).unwrap();
        assert_eq!(data[4..16], [0, 1, 3, 8, 0, 0, 1, 2, 2, 0, 0, 0]);
        let (page, subpage, body) = parse(&data).unwrap();
        assert_eq!((page, subpage, parse_parameters(body).len()), (0x0C, 0, 2));
        r.pointer = 2;
        let data = sense(&r, THIN).unwrap();
        assert_eq!(parse_parameters(parse(&data).unwrap().2)[0].code, 2);
        r.pointer = 3;
        assert_eq!(sense(&r, THIN), Err(Sense::invalid_field_in_cdb(5, None)));
    }

    #[test]
    fn saving_is_refused() {
        let r = LogSense { save: true, ..request(0, 0) };
        assert_eq!(sense(&r, None), Err(Sense::invalid_field_in_cdb(1, Some(0))));
        assert_eq!(r.control, PageControl::Changeable, "01b means cumulative values here");
    }

    #[test]
    fn a_parameter_that_is_cut_off_ends_the_list() {
        assert_eq!(parse_parameters(&[0, 1, 3, 2, 9]), []);
        assert_eq!(parse(&[0, 0, 0]), None);
    }
}
