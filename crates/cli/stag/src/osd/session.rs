//! A session with a device of objects, for one command of `stag osd`.

use iscsi_client::Session;
use iscsi_client::objects::Objects;

use super::error::OsdError;
use super::tree::Tree;
use crate::args::osd::Reach;
use crate::args::place::Where;
use crate::client::connect;

/// A device that is logged in to.
pub struct Opened {
    session: Session,
    pub device: Objects,
    place: Where,
}

impl Opened {
    /// Logs in and looks whether it is a device of objects.
    pub async fn new(place: &Where, reach: &Reach) -> Result<Self, OsdError> {
        let failed = |error| OsdError::Connect { place: place.url.to_string(), error };
        let session = connect::session(&place.url, &reach.connect).await.map_err(failed)?;
        let device =
            Objects::open(&session, place.url.lun.unwrap_or(0)).await.map_err(OsdError::at(&place.url));
        let opened = match device {
            Ok(device) => super::credential::attach(device, reach).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(device) => Ok(Self { session, device, place: place.clone() }),
            Err(error) => {
                // The first error is the one to report.
                let _ = session.close().await;
                Err(error)
            }
        }
    }

    /// Logs out, and hands on how it went.
    pub async fn close<T>(self, result: Result<T, OsdError>) -> Result<T, OsdError> {
        if let Err(error) = self.session.close().await {
            tracing::debug!(url = %self.place.url, %error, "no answer to the logout");
        }
        result
    }

    /// The partition that was named.
    pub fn partition(&self) -> Result<u64, OsdError> {
        self.place.partition.ok_or_else(|| {
            OsdError::wrong(
                format!("{}: the partition is missing", self.place),
                format!("which there are: stag osd ls {0}; make one: stag osd mkpart {0}", self.place.url),
            )
        })
    }

    /// The partition that was named, as a tree.
    pub fn tree(&self) -> Result<Tree, OsdError> {
        let partition = self.partition()?;
        let place = format!("{}/{partition:#x}", self.place.url);
        Ok(Tree { device: self.device.clone(), partition, place })
    }

    /// The object, collection or partition that was named; the root for the device alone.
    pub async fn object(&self) -> Result<osd::Id, OsdError> {
        use crate::args::place::Object;
        match (self.place.partition, &self.place.object) {
            (None, _) => Ok(osd::Id::ROOT),
            (Some(partition), None) => Ok(osd::Id::partition(partition)),
            (Some(partition), Some(Object::Id(id))) => Ok(osd::Id::new(partition, *id)),
            (Some(_), Some(Object::Path(path))) => {
                let tree = self.tree()?;
                Ok(tree.id(tree.get(path).await?.id))
            }
        }
    }
}
