//! What a far unit is: asked when a store is opened, and after each login.

use std::time::Duration;

use backing::{Geometry, StoreError};
use iscsi_client::{BlockLimits, Disk, Error, LogicalBlockProvisioning, ReadCapacity16, Session, Unit};
use scsi::Sense;
use scsi::cdb::PageControl;
use scsi::cdb::build;
use scsi::data::vpd::{Association, IDENTIFICATION, Identification};
use scsi::mode::{CACHING, ModeData};

use crate::judge::{Attention, Verdict, judge};

/// The most unit attentions of a new session.
const MAX_ATTENTIONS: usize = 64;
/// Tries, and the pause between two, until a unit is ready.
const READY: (u32, Duration) = (20, Duration::from_millis(250));
/// Bytes of the largest blocks that a unit may have.
const MAX_BLOCK: u32 = 4096;
/// The most bytes that count as a physical block, or as the granularity of UNMAP.
const MAX_GRANULE: u64 = 1 << 20;

/// Why there is no session with the unit.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Session(#[from] Error),
    #[error("the unit is not ready: {0}")]
    NotReady(StoreError),
    #[error("{0}")]
    Other(String),
}

/// What a unit says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Far {
    pub capacity: ReadCapacity16,
    pub limits: Option<BlockLimits>,
    pub provisioning: Option<LogicalBlockProvisioning>,
    /// The most blocks of a READ or WRITE.
    pub max_transfer: u32,
    /// WCE; a unit that does not say has a volatile cache.
    pub write_cache: bool,
    /// DPOFUA.
    pub fua: bool,
    /// WP.
    pub read_only: bool,
    /// Its designators (VPD page 83h); none if it has none.
    pub names: Vec<Vec<u8>>,
}

impl Far {
    pub(crate) fn block(&self) -> u64 {
        self.capacity.block_len.into()
    }

    pub(crate) fn size(&self) -> u64 {
        self.capacity.last_lba.saturating_add(1).saturating_mul(self.block())
    }

    /// Deallocated blocks read as zeros.
    pub(crate) fn deallocates_to_zeros(&self) -> bool {
        self.capacity.provisioning && self.capacity.deallocated_is_zero
    }

    /// Zeros by WRITE SAME may become holes (LBPWS).
    pub(crate) fn zeros_may_be_holes(&self) -> bool {
        self.deallocates_to_zeros() && self.provisioning.as_ref().is_some_and(|page| page.write_same16)
    }

    /// UNMAP makes holes (LBPU).
    pub(crate) fn unmaps(&self) -> bool {
        self.deallocates_to_zeros() && self.provisioning.as_ref().is_some_and(|page| page.unmap)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let block = self.capacity.block_len;
        let bytes = |blocks: u64| {
            let bytes = blocks.saturating_mul(self.block());
            if bytes.is_power_of_two() && bytes <= MAX_GRANULE { bytes as u32 } else { block }
        };
        // Physical blocks that begin elsewhere than at LBA 0 are of no use to a unit above.
        let physical = match self.capacity.lowest_aligned {
            0 => bytes(1 << self.capacity.physical_exponent),
            _ => block,
        };
        let granularity = self.limits.as_ref().map_or(1, |limits| limits.unmap_granularity.max(1));
        let discard_granularity = bytes(granularity.into()).max(physical);
        Geometry { block, physical_block: physical, discard_granularity }
    }
}

/// Asks the unit, once it is ready. `heard` gets its unit attentions, even if it then fails.
pub(crate) async fn look(
    session: &Session,
    number: u16,
    heard: &mut Vec<Attention>,
) -> Result<(Unit, Far), OpenError> {
    let unit = Unit::new(session, number)?;
    ready(&unit, heard).await?;
    let inquiry = unit.inquiry().await?;
    if inquiry.device_type != 0 {
        return Err(OpenError::Other(format!(
            "it is no disk: its device type is {:02x}h",
            inquiry.device_type
        )));
    }
    let names = match unit.vpd(IDENTIFICATION).await {
        Ok(body) => names(&body),
        Err(error) if error.is_unsupported() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mode = mode(&unit).await?;
    let disk = Disk::of(unit.clone()).await?;
    let block = disk.block_len();
    if !block.is_power_of_two() || !(512..=MAX_BLOCK).contains(&block) {
        return Err(OpenError::Other(format!(
            "it has blocks of {block} bytes: only 512, 1024, 2048 and 4096 are served"
        )));
    }
    let far = Far {
        capacity: *disk.capacity(),
        limits: disk.limits().copied(),
        provisioning: disk.provisioning().copied(),
        max_transfer: disk.max_transfer(),
        write_cache: mode.as_ref().and_then(ModeData::write_cache).unwrap_or(true),
        fua: mode.as_ref().is_some_and(|mode| mode.dpo_fua),
        read_only: mode.as_ref().is_some_and(|mode| mode.write_protected),
        names,
    };
    Ok((unit, far))
}

/// Waits until the unit is ready, and takes its unit attentions.
async fn ready(unit: &Unit, heard: &mut Vec<Attention>) -> Result<(), OpenError> {
    let mut busy = 0;
    loop {
        let response = unit.scsi_command(&build::test_unit_ready(), None, None).await?;
        match judge(response.status, Sense::parse(&response.sense).as_ref()) {
            Verdict::Good => return Ok(()),
            Verdict::Attention(attention) if heard.len() < MAX_ATTENTIONS => heard.push(attention),
            Verdict::Failed(error) => return Err(OpenError::NotReady(error)),
            Verdict::EarlierFailed if heard.len() < MAX_ATTENTIONS => heard.push(Attention::Reset),
            Verdict::EarlierFailed | Verdict::Attention(_) | Verdict::Again | Verdict::Busy => {
                busy += 1;
                if busy > READY.0 {
                    return Err(OpenError::NotReady(StoreError::Unknown));
                }
                runtime::sleep(READY.1).await;
            }
        }
    }
}

/// The unit's own designators, in a fixed order: those of ports differ by the path.
fn names(body: &[u8]) -> Vec<Vec<u8>> {
    let all = Identification::parse(body).0;
    let of_unit = all.iter().filter(|designator| designator.association == Association::LogicalUnit);
    let mut names: Vec<Vec<u8>> = of_unit
        .map(|designator| {
            let mut bytes = Vec::new();
            designator.emit(&mut bytes);
            bytes
        })
        .collect();
    names.sort_unstable();
    names
}

/// The Caching page with the mode parameter header; `None` if the unit has neither.
async fn mode(unit: &Unit) -> Result<Option<ModeData>, OpenError> {
    let control = PageControl::Current;
    // Some units know all pages, but none alone.
    for (cdb, long) in [
        (build::mode_sense6(control, CACHING, 0, true, 192), false),
        (build::mode_sense10(control, CACHING, 0, true, 192), true),
        (build::mode_sense6(control, 0x3f, 0, true, 192), false),
    ] {
        match unit.read_data(&cdb, 192).await {
            Ok(data) => return Ok(ModeData::parse(&data, long)),
            Err(error) if error.is_unsupported() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
