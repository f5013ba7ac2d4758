//! `stag info`: asks a unit for everything that it reports about itself. Omits what it does not
//! support.

use iscsi_client::{Error, Unit, Url};
use scsi::cdb::build;
use scsi::cdb::primary::PageControl;
use scsi::data::capacity::ReadCapacity16;
use scsi::data::vpd;

use super::connect::{self, ConnectError};
use super::facts::{self, Capacity, Characteristics, Facts, Inquiry, Limits, Provisioning};
use crate::args::Info;

/// Caching mode page (SBC-3 §6.4.5).
const CACHING: u8 = 0x08;

/// Asks the unit of `url`, and formats its facts as text or JSON.
pub async fn info(url: &Url, args: &Info) -> Result<String, ConnectError> {
    let session = connect::session(url, &args.connect).await?;
    let facts = match Unit::new(&session, url.lun.unwrap_or(0)) {
        Ok(unit) => ask(&unit, url.to_string()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = session.close().await {
        tracing::warn!(%url, %error, "no answer to the logout");
    }
    let facts = facts?;
    Ok(if args.json {
        serde_json::to_string_pretty(&facts).unwrap_or_default() + "\n"
    } else {
        facts.to_string()
    })
}

async fn ask(unit: &Unit, url: String) -> Result<Facts, Error> {
    let inquiry = Inquiry::from(unit.inquiry().await?);
    // PERIPHERAL QUALIFIER 011b: there is nothing at this number (SPC-4 table 138).
    if inquiry.qualifier == 3 {
        return Err(Error::Argument(
            "the target has no such unit; `stag ls --units` lists those that it has",
        ));
    }
    let blocks = facts::is_of_blocks(inquiry.device_type);
    let vpd_pages = known(unit.vpd_pages().await)?.unwrap_or_default();
    let mut facts = Facts { url, inquiry, vpd_pages, ..Facts::default() };
    for page in facts.vpd_pages.clone() {
        // Pages from B0h on depend on the device type (SPC-4 table 547): an object store's B1h is
        // the security token.
        if page >= vpd::BLOCK_LIMITS && !blocks {
            continue;
        }
        let Some(body) = known(unit.vpd(page).await)? else { continue };
        match page {
            vpd::UNIT_SERIAL => facts.serial = facts::serial(&body),
            vpd::IDENTIFICATION => facts.designators = facts::designators(&body),
            vpd::BLOCK_LIMITS => facts.limits = Limits::parse(&body),
            vpd::BLOCK_CHARACTERISTICS => facts.characteristics = Characteristics::parse(&body),
            vpd::LOGICAL_BLOCK_PROVISIONING => facts.provisioning = Provisioning::parse(&body),
            _ => {}
        }
    }
    facts.ready = Some(known(unit.test_unit_ready().await)?.is_some());
    if let Some(data) = known(unit.read_data(&build::read_capacity16(32), 32).await)? {
        facts.capacity = ReadCapacity16::parse(&data).as_ref().and_then(Capacity::new);
    }
    let caching = build::mode_sense6(PageControl::Current, CACHING, 0, false, 255);
    if let Some(data) = known(unit.read_data(&caching, 255).await)? {
        (facts.write_protected, facts.write_cache) = facts::modes(&data);
    }
    Ok(facts)
}

/// The unit's answer, or `None` if it failed the command.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Scsi(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
