//! Partitions and user objects: created, written, read, removed, and their attributes.

use super::*;

impl Pair {
    pub(super) async fn create_partition(&mut self) {
        if self.model.partitions.len() > 8 {
            return;
        }
        let requested = match self.chance.below(5) {
            0 => self.chance.below(FIRST),
            1 | 2 => FIRST + self.chance.below(12),
            _ => 0,
        };
        let answer = self.send(Request::new(Osd::CreatePartition { requested }).get(&IDS)).await;
        let expected = self.model.may_create_partition(requested);
        if self.agree(&answer, expected) {
            let id = answer.number(0);
            assert!(id >= FIRST && (requested == 0 || id == requested) && answer.number(1) == 0);
            assert!(!self.model.partitions.contains_key(&id), "partition {id:#x} is taken");
            self.model.create_partition(id);
        }
    }

    pub(super) async fn remove_partition(&mut self) {
        let partition = self.partition();
        let scope = if self.chance.one_in(2) { RemoveScope::Contents } else { RemoveScope::Empty };
        let mut request = Request::new(Osd::RemovePartition { partition, scope });
        if scope == RemoveScope::Contents {
            request.form = Form::Osd2Draft;
        }
        self.both(request, |model| model.remove_partition(partition, scope == RemoveScope::Contents)).await;
    }

    pub(super) async fn create(&mut self) {
        let (partition, requested) = (self.partition(), self.requested());
        let count = if self.chance.one_in(3) { 1 + self.chance.below(5) } else { 1 };
        if self.model.partitions.get(&partition).is_some_and(|found| found.users.len() > 30) {
            return;
        }
        let mut request = Request::new(Osd::Create { partition, requested, count: count as u16 }).get(&IDS);
        if self.chance.one_in(2) {
            request.set = self.settings(ObjectType::User, partition);
            // An object that is being created is in no collection and has no length yet.
            request.set.retain(|(attribute, _)| {
                attribute.page.is_free() || attribute.number <= 9 && attribute.page.0 == 1
            });
        }
        let set = request.set.clone();
        let answer = self.send(request).await;
        let Some(()) = self.granted(&answer, self.model.may_create(partition, requested, count)) else {
            return;
        };
        let ids = match answer.result {
            Ok(()) if count == 1 => vec![self.created(&answer, partition, requested)],
            Ok(()) => {
                let (ids, values) = answer.of_many();
                let last = u64::from_be_bytes(values[1].1.as_slice().try_into().expect("an id"));
                assert_eq!(ids, (last + 1 - count..=last).collect::<Vec<_>>());
                ids
            }
            // Any free id shows the fault.
            Err(_) => vec![if requested == 0 { u64::MAX } else { requested }],
        };
        let expected = self.model.create(partition, &ids, &set);
        self.agree(&answer, expected);
    }

    pub(super) async fn create_and_write(&mut self) {
        let (partition, requested) = (self.partition(), self.requested());
        if self.model.partitions.get(&partition).is_some_and(|found| found.users.len() > 30) {
            return;
        }
        let (start, len) = (self.chance.below(9000), 1 + self.chance.below(9000));
        let data = self.chance.bytes(len);
        let range = ObjectRange { start, len };
        let request = Request::new(Osd::CreateAndWrite { partition, requested, range }).get(&IDS).data(&data);
        let answer = self.send(request).await;
        let Some(()) = self.granted(&answer, self.model.may_create(partition, requested, 1)) else { return };
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.create_and_write(Id::new(partition, id), start, &data);
        self.agree(&answer, expected);
    }

    pub(super) async fn write(&mut self) {
        let id = self.object(false);
        let len = 1 + [self.chance.below(200), self.chance.below(9000), 4095][self.chance.below(3) as usize];
        let data = self.chance.bytes(len);
        if self.chance.one_in(4) {
            // Scattered.
            let cut = self.chance.below(len + 1);
            let (one, other) = data.split_at(cut as usize);
            let pieces = [(self.place(id), one), (self.place(id), other)];
            let pieces: Vec<_> = pieces.into_iter().filter(|(_, data)| !data.is_empty()).collect();
            let ranges =
                pieces.iter().map(|(start, data)| ObjectRange { start: *start, len: data.len() as u64 });
            let request = Request::new(Osd::Write(id, ObjectRange { start: 0, len }))
                .data(&data)
                .with(Descriptor::ScatterGather(ranges.collect()));
            self.both(request, |model| model.write(id, &pieces)).await;
            return;
        }
        let start = self.place(id);
        self.both(Request::new(Osd::Write(id, ObjectRange { start, len })).data(&data), |model| {
            model.write(id, &[(start, &data)])
        })
        .await;
    }

    pub(super) async fn append(&mut self) {
        let id = self.object(false);
        let len = 1 + self.chance.below(5000);
        let data = self.chance.bytes(len);
        let request =
            Request::new(Osd::Append { id, len }).data(&data).get(&[current_command::APPEND_ADDRESS]);
        let answer = self.send(request).await;
        match self.model.append(id, &data) {
            Ok(at) => {
                self.agree(&answer, Ok(()));
                assert_eq!(answer.number(0), at, "the address of an append");
            }
            Err(fault) => {
                self.agree(&answer, Err(fault));
            }
        }
    }

    pub(super) async fn clear_or_punch(&mut self) {
        let id = self.object(false);
        let range = ObjectRange { start: self.place(id), len: 1 + self.chance.below(12_000) };
        let (command, expected) = if self.chance.one_in(2) {
            (Osd::Clear(id, range), self.model.clear(id, range.start, range.len))
        } else {
            (Osd::Punch(id, range), self.model.punch(id, range.start, range.len))
        };
        let answer = self.send(Request::new(command)).await;
        self.agree(&answer, expected);
    }

    pub(super) async fn read(&mut self) {
        let id = self.object(false);
        let (start, len) = (self.place(id), 1 + self.chance.below(20_000));
        let answer = self.send(Request::new(Osd::Read(id, ObjectRange { start, len }))).await;
        let Some(user) = self.granted(&answer, self.model.user(id)) else { return };
        let length = user.data.len() as u64;
        if start > length {
            self.agree(&answer, Err(Fault::Cdb(40)));
            return;
        }
        let end = (start + len).min(length);
        assert!(
            answer.data == user.data[start as usize..end as usize],
            "data of {id}\n{}",
            self.log.join("\n")
        );
        let expected = if end < start + len { Err(Fault::PastEnd(end - start)) } else { Ok(()) };
        self.agree(&answer, expected);
    }

    pub(super) async fn remove(&mut self) {
        let id = self.object(false);
        self.both(Request::new(Osd::Remove(id)), |model| model.remove(id)).await;
    }

    pub(super) async fn set(&mut self) {
        let id = self.anything();
        let of_type = self.model.type_of(id);
        let mut request = Request::new(Osd::SetAttributes(id));
        request.set = self.settings(of_type.unwrap_or(ObjectType::User), id.partition);
        let set = request.set.clone();
        self.both(request, |model| model.set(id, &set, false)).await;
    }

    pub(super) async fn get(&mut self) {
        let id = self.anything();
        let of_type = self.model.type_of(id);
        if let (Ok(of_type), true) = (of_type, self.chance.one_in(5)) {
            let page = if self.chance.one_in(2) { ANY } else { Page::of(of_type, FREE.0) };
            let all = AttributeId::new(page, AttributeId::ALL);
            let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&[all])).await;
            self.agree(&answer, Ok(()));
            let found: Vec<_> = answer.values().into_iter().map(|(a, v)| (a.number, v)).collect();
            assert_eq!(found, self.model.all_of(id, page).expect("it is there"), "{page} of {id}");
            return;
        }
        let wanted = self.wanted(of_type.unwrap_or(ObjectType::User));
        let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&wanted)).await;
        if self.agree(&answer, of_type.map(drop)) {
            self.compare_values(id, &answer.values(), &wanted);
        }
    }
}
