//! SCSI's requirements on an iSCSI transport (SPC-4, SAM-5, SBC-3).

use crate::check::Area::Scsi;
use crate::check::Check;
use crate::conn::Conn;
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::scsi::{Command, inquiry};

const WHO: &str =
    "Multipathing finds out by these designators which paths lead to one unit, and by which port each does.";
const FIND: &str = "Hosts find a target's units so.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Scsi, "report-luns", "SPC-4 §6.33",
        "REPORT LUNS lists this unit, in whole entries of 8 bytes, each once.",
        FIND,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::reading(&report(0x1000), 4096))?.good("REPORT LUNS")?;
            let told = word(&done.data, 0) as usize;
            expect(told % 8 == 0 && done.data.len() >= (told + 8).min(4096), "a list as long as it says, in whole entries", || {
                format!("LUN LIST LENGTH {told} in {} bytes", done.data.len())
            })?;
            let units: Vec<&[u8]> = done.data.get(8..).unwrap_or_default().chunks_exact(8).take(told / 8).collect();
            expect(units.contains(&&lab.lun().0[..]), format!("LUN {}", lab.options.lun), || format!("{} other units", units.len()))?;
            let twice = units.iter().enumerate().any(|(n, unit)| units.iter().take(n).any(|other| other == unit));
            expect(!twice, "each unit once", || "one twice".to_owned())
        }),
    Check::must(Scsi, "report-luns-cut-off", "SPC-4 §6.33, §4.3.5.6",
        "REPORT LUNS with a short ALLOCATION LENGTH sends no more than that, and tells the whole length.",
        FIND,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::reading(&report(16), 256))?.good("REPORT LUNS")?;
            expect(done.data.len() <= 16, "at most 16 bytes", || format!("{} bytes", done.data.len()))?;
            let full = conn.run(&Command::reading(&report(0x1000), 4096))?.good("REPORT LUNS")?;
            let (cut, whole) = (word(&done.data, 0), word(&full.data, 0));
            expect(cut == whole, format!("LUN LIST LENGTH {whole}"), || format!("LUN LIST LENGTH {cut}"))
        }),
    Check::must(Scsi, "inquiry", "SPC-4 §6.6",
        "INQUIRY tells of a device that is there, with as much data as its ADDITIONAL LENGTH says.",
        FIND,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::reading(&inquiry(None, 255), 255))?.good("INQUIRY")?;
            let (first, more) = (byte(&done.data, 0), usize::from(byte(&done.data, 4)));
            expect(first >> 5 == 0, "peripheral qualifier 000b", || format!("first byte {first:#04x}"))?;
            expect(more >= 31 && done.data.len() == (more + 5).min(255), "at least 36 bytes, and as many as told", || {
                format!("ADDITIONAL LENGTH {more}, {} bytes", done.data.len())
            })
        }),
    Check::must(Scsi, "pages-are-there", "SPC-4 §7.8.14",
        "Every vital product data page that page 00h lists is there, under its own number; 00h, 80h or 83h among them.",
        "A host that is promised a page and gets an error drops the disk.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let list = page(&mut conn, 0)?;
            let pages = list.get(4..).unwrap_or_default().to_vec();
            expect(pages.contains(&0) && pages.contains(&0x83), "pages 00h and 83h in the list", || format!("{pages:02x?}"))?;
            expect(pages.is_sorted(), "ascending page codes", || format!("{pages:02x?}"))?;
            for code in pages {
                let data = page(&mut conn, code)?;
                expect(byte(&data, 1) == code, format!("PAGE CODE {code:02x}h"), || format!("{:02x}h", byte(&data, 1)))?;
            }
            Ok(())
        }),
    Check::must(Scsi, "unknown-page", "SPC-4 §6.6.4",
        "A vital product data page that is not there is refused: INVALID FIELD IN CDB.",
        FIND,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let pages = page(&mut conn, 0)?;
            let Some(absent) = (0xe0..=0xfe).find(|code| !pages.get(4..).unwrap_or_default().contains(code)) else {
                return not_applicable("every page is there");
            };
            let done = conn.run(&Command::reading(&inquiry(Some(absent), 255), 255))?;
            expect(done.sense_code() == Some((5, 0x24, 0)), "CHECK CONDITION, sense key 0x5, code 24h/00h", || done.told())
        }),
    Check::must(Scsi, "unit-has-a-name", "SPC-4 §7.8.6",
        "Page 83h has a designator of the unit: NAA, EUI-64, T10 vendor ID or SCSI name string.",
        WHO,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let found = designators(&mut conn)?;
            let unit = found.iter().any(|d| d.association == 0 && matches!(d.kind, 1 | 2 | 3 | 8));
            expect(unit, "a designator with ASSOCIATION 00b", || format!("{} designators, none of that kind", found.len()))
        }),
    Check::should(Scsi, "port-has-a-name", "SPC-4 §7.8.6.9, §7.8.6.11, RFC 7143 §4.4.4",
        "Page 83h names the target port: a SCSI name string of the target's name, \",t,0x\" and the portal group tag.",
        WHO,
        |lab| {
            let (group, mut conn) = group(lab)?;
            let names: Vec<String> = designators(&mut conn)?
                .into_iter()
                .filter(|d| d.association == 1 && d.kind == 8)
                .map(|d| String::from_utf8_lossy(&d.bytes).trim_end_matches('\0').to_owned())
                .collect();
            let want = format!("{},t,0x{group:04x}", lab.options.target);
            let same = |name: &String| match (name.rsplit_once(",t,0x"), u16::from_str_radix(name.rsplit_once(",t,0x").map_or("", |n| n.1), 16)) {
                (Some((target, _)), Ok(tag)) => iscsi::name::eq(target, &lab.options.target) && tag == group,
                _ => false,
            };
            expect(names.iter().any(same), want, || match names.is_empty() {
                true => "no SCSI name string of the target port".to_owned(),
                false => names.join(", "),
            })
        }),
    Check::should(Scsi, "port-has-a-number", "SPC-4 §7.8.6.7",
        "Page 83h has the relative target port identifier of the port that the session came by.",
        WHO,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let found = designators(&mut conn)?.iter().any(|d| d.association == 1 && d.kind == 4 && d.bytes.len() == 4);
            expect(found, "a designator of type 4h with ASSOCIATION 01b", || "none".to_owned())
        }),
    Check::must(Scsi, "port-groups", "SPC-4 §6.37, §5.15, §7.8.6.8",
        "A unit that says TPGS has a target port group in page 83h, and REPORT TARGET PORT GROUPS lists it with the session's port.",
        "Multipathing sends I/O by the states that it finds there.",
        groups),
    Check::must(Scsi, "capacities-agree", "SBC-3 §5.16, §5.17",
        "READ CAPACITY (10) and (16) tell the same last block and block length.",
        "Hosts use the one or the other.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let ten = conn.run(&Command::reading(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8))?.good("READ CAPACITY (10)")?.data;
            let mut cdb = [0; 16];
            (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
            let done = conn.run(&Command::reading(&cdb, 32))?;
            if done.sense_code() == Some((5, 0x20, 0)) {
                return not_applicable("the unit has no READ CAPACITY (16)");
            }
            let sixteen = done.good("READ CAPACITY (16)")?.data;
            let last = u64::from(word(&sixteen, 0)) << 32 | u64::from(word(&sixteen, 4));
            let short = u32::try_from(last).unwrap_or(u32::MAX);
            expect(word(&ten, 0) == short, format!("last block {short}"), || format!("last block {}", word(&ten, 0)))?;
            expect(word(&ten, 4) == word(&sixteen, 8), format!("{} bytes a block", word(&sixteen, 8)), || format!("{} bytes", word(&ten, 4)))
        }),
    Check::should(Scsi, "both-ways-of-addressing", "SAM-5 §4.7.7",
        "A unit below 256 answers by peripheral device addressing and by flat space addressing alike.",
        "Hosts choose; Linux uses the one below 256, others the other.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let Some(flat) = iscsi::pdu::Lun::flat(lab.options.lun) else { return not_applicable("no such number") };
            let (one, other) = (conn.run(&Command::reading(&inquiry(None, 36), 36))?, conn.run(&Command::reading(&inquiry(None, 36), 36).at(flat))?);
            expect(one.data == other.data && other.is_good(), "the same INQUIRY data", || match other.data.first() {
                Some(0x7f) => "no unit there".to_owned(),
                _ => other.told(),
            })
        }),
    Check::must(Scsi, "reservation-names-its-holder", "SPC-4 §6.15.5, §7.6.4.4",
        "READ FULL STATUS names an iSCSI initiator by a TransportID of protocol 5h: its name, and \",i,0x\" with the ISID where the format is 01b.",
        "Cluster software takes the holder of a key from there, to fence it.",
        transport_id).writing(),
];

struct Designator {
    association: u8,
    kind: u8,
    bytes: Vec<u8>,
}

fn byte(data: &[u8], at: usize) -> u8 {
    data.get(at).copied().unwrap_or(0)
}

fn word(data: &[u8], at: usize) -> u32 {
    data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn report(allocation: u32) -> [u8; 12] {
    let a = allocation.to_be_bytes();
    [0xa0, 0, 0, 0, 0, 0, a[0], a[1], a[2], a[3], 0, 0]
}

/// A vital product data page, of the length in its header.
fn page(conn: &mut Conn, code: u8) -> Verdict<Vec<u8>> {
    let done = conn.run(&Command::reading(&inquiry(Some(code), 1024), 1024))?.good("INQUIRY of a page")?;
    let told = usize::from(byte(&done.data, 2)) << 8 | usize::from(byte(&done.data, 3));
    let mut data = done.data;
    expect(data.len() >= (told + 4).min(1024), "as many bytes as PAGE LENGTH says", || {
        format!("PAGE LENGTH {told} in {} bytes of page {code:02x}h", data.len())
    })?;
    data.truncate(told + 4);
    Ok(data)
}

fn designators(conn: &mut Conn) -> Verdict<Vec<Designator>> {
    let data = page(conn, 0x83)?;
    let (mut found, mut rest) = (Vec::new(), data.get(4..).unwrap_or_default());
    while let Some(header) = rest.first_chunk::<4>() {
        let end = 4 + usize::from(header[3]);
        let Some(bytes) = rest.get(4..end) else {
            return wrong("a designator that passes the page's end", "whole designators");
        };
        found.push(Designator {
            association: header[1] >> 4 & 3,
            kind: header[1] & 15,
            bytes: bytes.to_vec(),
        });
        rest = rest.get(end..).unwrap_or_default();
    }
    Ok(found)
}

/// The portal group tag of the login, and its session.
fn group(lab: &Lab) -> Verdict<(u16, Conn)> {
    let conn = lab.ready(&[])?;
    let tag = conn.agreed("TargetPortalGroupTag").and_then(|tag| tag.parse().ok());
    match tag {
        Some(tag) => Ok((tag, conn)),
        None => not_applicable("the login tells no TargetPortalGroupTag"),
    }
}

fn groups(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    let told = byte(&conn.run(&Command::reading(&inquiry(None, 36), 36))?.data, 5) >> 4 & 3;
    if told == 0 {
        return not_applicable("not offered: TPGS is 00b");
    }
    let found = designators(&mut conn)?;
    let number = |kind| {
        found
            .iter()
            .find(|d| d.association == 1 && d.kind == kind)
            .map(|d| (word(&d.bytes, 0) & 0xffff) as u16)
    };
    let (Some(port), Some(group)) = (number(4), number(5)) else {
        return wrong("no relative target port and target port group in page 83h", "both");
    };
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[8]) = (0xa3, 0x0a, 4);
    let done = conn.run(&Command::reading(&cdb, 1024))?.good("REPORT TARGET PORT GROUPS")?;
    let told = word(&done.data, 0) as usize;
    let mut rest = done.data.get(4..(4 + told).min(done.data.len())).unwrap_or_default();
    while let Some(header) = rest.first_chunk::<8>() {
        let count = usize::from(header[7]);
        let ports: Vec<u16> = rest
            .get(8..)
            .unwrap_or_default()
            .chunks_exact(4)
            .take(count)
            .map(|p| u16::from_be_bytes([p[2], p[3]]))
            .collect();
        if u16::from_be_bytes([header[2], header[3]]) == group {
            return expect(ports.contains(&port), format!("port {port} in group {group}"), || {
                format!("ports {ports:?}")
            });
        }
        rest = rest.get(8 + count * 4..).unwrap_or_default();
    }
    wrong("a list without it", format!("target port group {group}"))
}

/// PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY.
fn register(conn: &mut Conn, key: u64) -> Verdict<bool> {
    let mut parameters = vec![0; 24];
    if let Some(place) = parameters.get_mut(8..16) {
        place.copy_from_slice(&key.to_be_bytes());
    }
    let done = conn.run(&Command::writing(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], parameters))?;
    Ok(done.is_good())
}

fn transport_id(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    if !register(&mut conn, 0x5354_4147_434f_4e46)? {
        return not_applicable("the unit takes no registrations");
    }
    let done = conn.run(&Command::reading(&[0x5e, 3, 0, 0, 0, 0, 0, 4, 0, 0], 1024))?;
    register(&mut conn, 0)?;
    if !done.is_good() {
        return should(false, "READ FULL STATUS ends with status GOOD", || done.told());
    }
    let (mut rest, mut seen) = (done.data.get(8..).unwrap_or_default(), Vec::new());
    while rest.len() >= 24 {
        let len = word(rest, 20) as usize;
        let id = rest.get(24..24 + len).unwrap_or_default();
        let text = String::from_utf8_lossy(id.get(4..).unwrap_or_default()).trim_end_matches('\0').to_owned();
        seen.push((word(rest, 4), byte(id, 0), text));
        rest = rest.get(24 + len..).unwrap_or_default();
    }
    let Some((_, first, text)) = seen.iter().find(|(key, ..)| *key == 0x434f_4e46) else {
        return wrong(format!("{} other registrations", seen.len()), "this session's registration");
    };
    let isid: String = conn.isid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = &lab.options.initiator;
    let want = match first >> 6 {
        0 => name.clone(),
        _ => format!("{name},i,0x{isid}"),
    };
    let right = first & 15 == 5 && text.eq_ignore_ascii_case(&want);
    expect(right, format!("protocol 5h, {want}"), || format!("protocol {:x}h, {text}", first & 15))
}
