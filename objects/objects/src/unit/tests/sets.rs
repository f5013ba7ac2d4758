//! Collections, and commands on every member of one.

use osd::attributes::list::parse_many;
use osd::attributes::numbers::{
    collection_information, collections, command_tracking as tracking, current_command, user_information,
};
use osd::cdb::FlushScope;
use osd::sense::function;

use super::*;

const FREE_OF_SET: AttributeId = AttributeId::new(Page::of(osd::ObjectType::Collection, 0x1_0000), 1);
const C: u64 = O + 0x1000;
const SET: Id = Id::new(P, C);

fn pointer(number: u32) -> AttributeId {
    AttributeId::new(collections::PAGE, number)
}

impl Client {
    /// With a linked collection of `count` objects besides the one that is in none.
    fn with_members(count: u16) -> Self {
        let it = Self::ready();
        it.ask(Osd::CreateCollection { partition: P, requested: C }).send().good();
        if count > 0 {
            let create = Osd::Create { partition: P, requested: 0, count };
            it.ask(create).set(pointer(1), &C.to_be_bytes()).send().good();
        }
        it
    }

    fn members(&self, id: Id) -> u64 {
        self.unit.store().object(id).unwrap().members
    }

    fn tracked(&self, id: Id) -> Vec<Vec<u8>> {
        let page = [
            tracking::PERCENT_COMPLETE,
            tracking::ACTIVE_COMMAND,
            tracking::ENDED_STATUS,
            tracking::PROCESSED,
            tracking::MISSING_SKIPPED,
        ];
        let values = self.ask(Osd::GetAttributes(id)).get(&page).send().good().values();
        values.into_iter().map(|(_, value)| value).collect()
    }
}

#[test]
fn collections_are_created_and_removed_with_their_attributes() {
    for it in Client::each_form() {
        let name = collection_information::NAME;
        let made = it
            .ask(Osd::CreateCollection { partition: P, requested: C })
            .set(name, b"set")
            .get(&[
                current_command::OBJECT_ID,
                current_command::OBJECT_TYPE,
                name,
                collection_information::TYPE,
            ])
            .send()
            .good()
            .values();
        let made: Vec<&[u8]> = made.iter().map(|(_, value)| value.as_slice()).collect();
        assert_eq!(made, [&C.to_be_bytes()[..], &[0x40], b"set", &[0]]);
        it.ask(Osd::CreateCollection { partition: P, requested: C }).send().bad_field(24);
        it.ask(Osd::CreateCollection { partition: P, requested: O }).send().bad_field(24);
        it.ask(Osd::CreateCollection { partition: P, requested: 5 }).send().bad_field(24);
        it.ask(Osd::CreateCollection { partition: P + 1, requested: 0 }).send().bad_field(16);
        // One whose attributes cannot be set leaves nothing.
        let refused = Osd::CreateCollection { partition: P, requested: C + 1 };
        it.ask(refused)
            .set(collection_information::ID, &[0; 8])
            .send()
            .fails(SenseKey::IllegalRequest, (0x26, 0));
        it.get(Id::new(P, C + 1), name).bad_field(24);
        it.set(ID, pointer(1), &C.to_be_bytes()).good();
        let refused = it.ask(Osd::RemoveCollection { id: SET, force: false }).set(name, b"gone").send();
        refused.fails(SenseKey::IllegalRequest, (0x2C, 0x0A));
        let (not_begun, _, id) = refused.functions();
        assert_eq!((not_begun & function::COMMAND, id), (function::COMMAND, SET));
        assert_eq!(it.get(SET, name).good().value(), b"set", "what failed has set nothing");
        let removed = it.ask(Osd::RemoveCollection { id: SET, force: true }).set(name, b"last").get(&[name]);
        assert_eq!(removed.send().good().value(), b"last");
        assert_eq!(it.get(ID, pointer(1)).good().value(), b"");
        it.ask(Osd::RemoveCollection { id: ID, force: true }).send().bad_field(24);
    }
}

#[test]
fn a_collection_of_more_members_than_one_change_can_hold_is_removed() {
    let rig = crate::store::embedded::testing::Rig::new(100, 256 << 10);
    let clock = Arc::new(TestClock::default());
    let unit = OsdUnit::new(Arc::new(rig.open()), options(&clock)).unwrap();
    let it = Client::to(&unit, 1, clock);
    it.make();
    it.ask(Osd::CreateCollection { partition: P, requested: C }).send().good();
    for _ in 0..10 {
        let create = Osd::Create { partition: P, requested: 0, count: 300 };
        it.ask(create).set(pointer(1), &C.to_be_bytes()).send().good();
    }
    assert_eq!(it.members(SET), 3000);
    let remove = |force| it.ask(Osd::RemoveCollection { id: SET, force }).send();
    remove(false).fails(SenseKey::IllegalRequest, (0x2C, 0x0A));
    remove(true).good();
    it.get(SET, collection_information::NAME).bad_field(24);
    assert_eq!(it.unit.store().partition(P).unwrap().objects, 3001);
}

#[test]
fn a_collection_is_flushed_in_every_scope_with_what_the_same_command_sets() {
    for it in Client::each_form() {
        it.ask(Osd::CreateCollection { partition: P, requested: C }).send().good();
        it.set(ID, pointer(1), &C.to_be_bytes()).good();
        for scope in [FlushScope::Contents, FlushScope::Attributes, FlushScope::RangeOrAll] {
            let flush = Osd::FlushCollection { id: SET, scope };
            let value = [scope as u8];
            assert_eq!(
                it.ask(flush).set(FREE_OF_SET, &value).get(&[FREE_OF_SET]).send().good().value(),
                value
            );
            it.ask(Osd::FlushCollection { id: Id::new(P, C + 1), scope }).send().bad_field(24);
        }
        // Nothing has become another's.
        assert_eq!(it.members(SET), 1);
    }
}

#[test]
fn a_tracking_collection_gets_the_members_of_its_source_which_do_not_name_it() {
    let it = Client::with_members(600);
    let id = it.track(C);
    assert_eq!(it.members(id), 600);
    assert_eq!(it.get(id, collection_information::TYPE).good().value(), [1]);
    assert_eq!(it.get(id, tracking::MEMBERS).good().number(), 600);
    let one = Id::new(P, O + 1);
    let all = it.get(one, AttributeId::new(collections::PAGE, AttributeId::ALL)).good().values();
    assert_eq!(all.iter().map(|(attribute, _)| attribute.number).collect::<Vec<_>>(), [0, 1]);
    let create = |source| Osd::CreateUserTrackingCollection { partition: P, requested: C + 9, source };
    it.ask(create(C + 5)).send().bad_field(40);
    it.ask(create(O)).send().bad_field(40);
    it.get(Id::new(P, C + 9), collection_information::TYPE).bad_field(24);
    assert_eq!(it.members(it.track(0)), 0);
}

#[test]
fn members_are_removed_in_pieces_and_the_tracking_page_counts_them() {
    let it = Client::with_members(20_000);
    let id = it.track(C);
    it.ask(Osd::RemoveMemberObjects(id)).fua().send().good();
    assert_eq!((it.members(id), it.members(SET)), (0, 0));
    assert_eq!(it.unit.store().partition(P).unwrap().objects, 1);
    let processed = 20_000u64.to_be_bytes().to_vec();
    assert_eq!(it.tracked(id), [vec![100], vec![0, 0], vec![0, 0], processed, vec![0; 8]]);
    it.ask(Osd::RemoveMemberObjects(ID)).send().bad_field(24);
    it.ask(Osd::RemoveMemberObjects(Id::new(P + 1, C))).send().bad_field(16);
}

#[test]
fn a_removal_that_is_aborted_stops_at_its_next_piece() {
    let it = Client::with_members(20_000);
    let id = it.track(C);
    let (cdb, _, _) = it.ask(Osd::RemoveMemberObjects(id)).build();
    let Execution::Running(future) = it.execute(&cdb, 0, 0, TestMover::aborted_after(9, &[])) else {
        panic!("it has to wait")
    };
    block_on(future);
    let left = it.members(id);
    assert!(left > 15_000 && left < 20_000, "{left} are left");
    let tracked = it.tracked(id);
    assert_eq!(tracked[3], (20_000 - left).to_be_bytes());
    assert_eq!((tracked[1].as_slice(), tracked[2].as_slice()), (&[0, 0][..], &[0, 2][..]));
    assert!(!it.get(id, tracking::SENSE).good().value().is_empty());
    it.ask(Osd::RemoveMemberObjects(id)).send().good();
    assert_eq!(it.members(id), 0);
}

#[test]
fn attributes_of_all_members_are_set_and_got() {
    let it = Client::with_members(1000);
    it.ask(Osd::SetMemberAttributes(SET)).set(FREE, b"every one").send().good();
    assert_eq!(it.get(Id::new(P, O + 1000), FREE).good().value(), b"every one");
    assert_eq!(it.get(ID, FREE).good().value(), b"", "it is no member");
    let wanted = [FREE, user_information::ID];
    let ran = it.ask(Osd::GetMemberAttributes(SET)).get(&wanted).send().good();
    let list = parse_many(&ran.data[ran.retrieved..], Version::Osd2).unwrap();
    assert_eq!(list.len(), 1000);
    for (at, object) in list.iter().enumerate() {
        let id = O + 1 + at as u64;
        let values: Vec<&[u8]> = object.values.iter().map(|value| value.bytes).collect();
        assert_eq!((object.id, values), (id, vec![&b"every one"[..], &id.to_be_bytes()]));
    }
    // Entries without room are counted: the header gives the whole length.
    let ran = it.ask(Osd::GetMemberAttributes(SET)).get(&wanted).allocation(100).send().good();
    assert_eq!(ran.data.len(), ran.retrieved + 100);
    let whole = u32::from_be_bytes(ran.data[ran.retrieved + 4..ran.retrieved + 8].try_into().unwrap());
    assert_eq!(whole, 1000 * (16 + 32 + 24));
}

#[test]
fn both_orders_of_setting_and_getting_are_kept() {
    let it = Client::with_members(1);
    let value = |ran: Ran| {
        let list = parse_many(&ran.data[ran.retrieved..], Version::Osd2).unwrap();
        list[0].values.iter().next().unwrap().bytes.to_vec()
    };
    let both = |command| value(it.ask(command).get(&[FREE]).set(FREE, b"new").send().good());
    assert_eq!(both(Osd::GetMemberAttributes(SET)), b"");
    it.set(Id::new(P, O + 1), FREE, b"old").good();
    assert_eq!(both(Osd::GetMemberAttributes(SET)), b"old");
    it.set(Id::new(P, O + 1), FREE, b"old").good();
    assert_eq!(both(Osd::SetMemberAttributes(SET)), b"new");
}

#[test]
fn setting_that_fails_at_a_member_leaves_those_before_it_set_and_says_so() {
    let it = Client::with_members(3);
    let id = it.track(C);
    let quota = osd::attributes::numbers::user_quotas::MAX_LENGTH;
    it.set(Id::new(P, O + 2), quota, &10u64.to_be_bytes()).good();
    let length = user_information::LOGICAL_LENGTH;
    let ran = it.ask(Osd::SetMemberAttributes(id)).set(length, &100u64.to_be_bytes()).send();
    ran.quota();
    let (not_begun, done, about) = ran.functions();
    assert_eq!((not_begun & function::SET_ATTRIBUTES, done & function::COMMAND, about), (0, 0, id));
    let lengths: Vec<u64> = (1..4).map(|n| it.get(Id::new(P, O + n), length).good().number()).collect();
    assert_eq!(lengths, [100, 0, 0]);
    let tracked = it.tracked(id);
    assert_eq!((tracked[2].as_slice(), tracked[3].as_slice()), (&[0, 2][..], &1u64.to_be_bytes()[..]));
    assert!(tracked[0][0] < 100);
}
