//! A logical unit of any type: INQUIRY, vital product data, and raw commands.

use iscsi::pdu::Lun;
use scsi::cdb::build;
use scsi::data::inquiry::StandardInquiry;
use scsi::data::vpd;

use crate::error::Error;
use crate::session::{Command, Response, Session};

/// A logical unit, accessed through a session.
#[derive(Debug, Clone)]
pub struct Unit {
    session: Session,
    lun: Lun,
}

impl Unit {
    /// The unit with this LUN, 0 to 16383. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Argument`] for a larger number.
    pub fn new(session: &Session, number: u16) -> Result<Self, Error> {
        let lun = Lun::new(number).ok_or(Error::Argument("a logical unit number is at most 16383"))?;
        Ok(Self::at(session, lun))
    }

    /// The unit with that LUN field.
    pub fn at(session: &Session, lun: Lun) -> Self {
        Unit { session: session.clone(), lun }
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its LUN field.
    pub fn lun(&self) -> Lun {
        self.lun
    }

    /// A command for this unit, for [`Session::start`].
    pub fn command(&self, cdb: &[u8]) -> Command {
        Command::new(self.lun, cdb)
    }

    /// Runs any command once: it is not repeated after a lost session. Any status is an answer.
    ///
    /// # Errors
    /// Any [`Error`] except [`Error::Scsi`].
    pub async fn scsi_command(
        &self,
        cdb: &[u8],
        data_out: Option<runtime::Chain>,
        data_in_len: Option<u32>,
    ) -> Result<Response, Error> {
        let command = Command { write: data_out, read_len: data_in_len, ..self.command(cdb).once() };
        self.session.execute(command).await
    }

    /// Waits until the unit is ready, and clears its pending unit attentions.
    ///
    /// # Errors
    /// Any [`Error`], for example [`Error::Scsi`] with NOT READY.
    pub async fn test_unit_ready(&self) -> Result<(), Error> {
        self.session.execute_patiently(self.command(&build::test_unit_ready())).await.map(drop)
    }

    /// Standard INQUIRY data.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn inquiry(&self) -> Result<StandardInquiry, Error> {
        let data = self.read_data(&build::inquiry(None, 255), 255).await?;
        StandardInquiry::parse(&data).ok_or(Error::Data("INQUIRY"))
    }

    /// The body of a vital product data page.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::is_unsupported`] if the unit lacks the page.
    pub async fn vpd(&self, page: u8) -> Result<Vec<u8>, Error> {
        let mut len: u16 = 255;
        loop {
            let data = self.read_data(&build::inquiry(Some(page), len), len.into()).await?;
            let (number, body) = vpd::parse(&data).ok_or(Error::Data("VPD"))?;
            if number != page {
                return Err(Error::Data("VPD"));
            }
            let whole = data.get(2..4).map_or(0, |l| u16::from_be_bytes([l[0], l[1]])).saturating_add(4);
            if whole > len {
                len = whole;
                continue;
            }
            return Ok(body.to_vec());
        }
    }

    /// The numbers of the unit's VPD pages.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn vpd_pages(&self) -> Result<Vec<u8>, Error> {
        self.vpd(0x00).await
    }

    /// Runs a command that reads parameter data and has no side effects.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn read_data(&self, cdb: &[u8], len: u32) -> Result<Vec<u8>, Error> {
        let response = self.session.execute_patiently(self.command(cdb).reading(len)).await?;
        Ok(response.data.to_vec())
    }
}
