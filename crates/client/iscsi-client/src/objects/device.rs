//! The device and its partitions.

use osd::attributes::numbers::{current_command, partition_information, root_information};
use osd::cdb::{FlushScope, RemoveScope, StructureScope};
use osd::{Command, Id};

use super::{Attribute, ObjectError, Objects, Operation};

/// The properties of a device. Bytes and counts are `None` if it does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// OSD SYSTEM ID.
    pub system_id: Vec<u8>,
    /// OSD NAME.
    pub name: Vec<u8>,
    /// Vendor, product, model, revision and serial number.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Model.
    pub model: String,
    /// Revision.
    pub revision: String,
    /// Serial number.
    pub serial: String,
    /// Capacity in bytes.
    pub total: Option<u64>,
    /// Bytes in use.
    pub used: Option<u64>,
    /// Number of partitions.
    pub partitions: Option<u64>,
    /// Its clock, milliseconds since 1970.
    pub clock_ms: Option<u64>,
}

/// The properties of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionFacts {
    /// Its name.
    pub name: Vec<u8>,
    /// Bytes in use.
    pub used: Option<u64>,
    /// Number of collections and user objects.
    pub objects: Option<u64>,
}

fn text(value: Option<&[u8]>) -> String {
    let value = value.unwrap_or_default();
    let end = value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&value[..end]).trim().to_owned()
}

impl Objects {
    /// The properties of the device.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn facts(&self) -> Result<Facts, ObjectError> {
        use root_information as root;
        let ids = [
            root::VENDOR,
            root::PRODUCT,
            root::MODEL,
            root::REVISION,
            root::SERIAL,
            root::OSD_NAME,
            root::TOTAL_CAPACITY,
            root::USED_CAPACITY,
            root::PARTITIONS,
            root::CLOCK,
            root::SYSTEM_ID,
        ];
        let reply = self.run(Operation::new(Command::GetAttributes(Id::ROOT)).get(ids)).await?;
        let bytes = |id| reply.value(id).unwrap_or_default().to_vec();
        Ok(Facts {
            system_id: bytes(root::SYSTEM_ID),
            name: bytes(root::OSD_NAME),
            vendor: text(reply.value(root::VENDOR)),
            product: text(reply.value(root::PRODUCT)),
            model: text(reply.value(root::MODEL)),
            revision: text(reply.value(root::REVISION)),
            serial: text(reply.value(root::SERIAL)),
            total: reply.number(root::TOTAL_CAPACITY),
            used: reply.number(root::USED_CAPACITY),
            partitions: reply.number(root::PARTITIONS),
            clock_ms: reply.number(root::CLOCK),
        })
    }

    /// The properties of a partition.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn partition_facts(&self, partition: u64) -> Result<PartitionFacts, ObjectError> {
        use partition_information as info;
        let operation = Operation::new(Command::GetAttributes(Id::partition(partition)));
        let reply = self.run(operation.get([info::NAME, info::USED_CAPACITY, info::OBJECTS])).await?;
        Ok(PartitionFacts {
            name: reply.value(info::NAME).unwrap_or_default().to_vec(),
            used: reply.number(info::USED_CAPACITY),
            objects: reply.number(info::OBJECTS),
        })
    }

    /// Erases everything. `capacity`: maximum bytes for objects afterwards; 0 for the whole device.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn format(&self, capacity: u64) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::Format { capacity })).await.map(drop)
    }

    /// Creates a partition with this id; 0 lets the device choose.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn create_partition(
        &self,
        requested: u64,
        attributes: impl IntoIterator<Item = Attribute>,
    ) -> Result<u64, ObjectError> {
        let operation = Operation::new(Command::CreatePartition { requested }).set_all(attributes);
        self.creating_partition(operation).await
    }

    /// Runs an operation that creates a partition, and returns its id.
    pub(super) async fn creating_partition(&self, operation: Operation) -> Result<u64, ObjectError> {
        let reply = self.run(operation.get([current_command::PARTITION_ID])).await?;
        reply.number(current_command::PARTITION_ID).ok_or(ObjectError::Data("the id of a new partition"))
    }

    /// Removes a partition; with `contents`, even a non-empty one.
    ///
    /// # Errors
    /// [`ObjectError`], [`super::Why::NotEmpty`] among them.
    pub async fn remove_partition(&self, partition: u64, contents: bool) -> Result<(), ObjectError> {
        let scope = if contents { RemoveScope::Contents } else { RemoveScope::Empty };
        self.run(Operation::new(Command::RemovePartition { partition, scope })).await.map(drop)
    }

    /// Waits until all of a partition is on the medium.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn flush_partition(&self, partition: u64) -> Result<(), ObjectError> {
        let command = Command::FlushPartition { partition, scope: FlushScope::RangeOrAll };
        self.run(Operation::new(command)).await.map(drop)
    }

    /// Waits until everything is on the medium.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn flush_all(&self) -> Result<(), ObjectError> {
        self.run(Operation::new(Command::FlushOsd { scope: FlushScope::RangeOrAll })).await.map(drop)
    }

    /// Lets the device check its structures: those of one partition, or all.
    ///
    /// # Errors
    /// [`ObjectError`], for example the device's findings.
    pub async fn check(&self, partition: Option<u64>) -> Result<(), ObjectError> {
        let scope = partition.map_or(StructureScope::Root, StructureScope::Partition);
        self.run(Operation::new(Command::ObjectStructureCheck(scope))).await.map(drop)
    }
}
