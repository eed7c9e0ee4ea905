use super::*;

fn rights(read: &[&str], append: &[&str]) -> UserRights {
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    UserRights { read: all(read), append: all(append), ..UserRights::default() }
}

fn user(rights: UserRights) -> Arc<StoreUser> {
    Arc::new(StoreUser::new(UserKey::new("ann", [7; 32]).unwrap(), rights))
}

#[test]
fn a_right_holds_for_names_that_begin_with_one_of_its_prefixes() {
    let ann = user(rights(&["ticks.", "day"], &["ticks.a"]));
    let allowed = |right, name: &str| ann.user_rights().has_right(right, name);
    assert!(allowed(FileRight::Read, "ticks.b") && allowed(FileRight::Read, "day"));
    assert!(!allowed(FileRight::Read, "tick") && !allowed(FileRight::Append, "ticks.b"));
    assert!(allowed(FileRight::Append, "ticks.a1") && !allowed(FileRight::Create, "ticks.a1"));
    let admin = UserRights { admin: vec![String::new()], ..UserRights::default() };
    assert!(admin.has_right(FileRight::Read, "x") && !admin.has_right(FileRight::Append, "x"));
    let error = ann.expect(FileRight::Append, "day").unwrap_err().to_string();
    assert!(error.contains("user ann has no right to append day"), "{error}");
    assert!(error.contains("who operates this server"), "{error}");
    let long = ann.expect(FileRight::Append, &"x".repeat(1_024)).unwrap_err().to_string();
    assert!(long.len() < 256, "the advice fits a reply: {long}");
}

#[test]
fn connections_are_counted_until_they_end() {
    let ann = user(UserRights { connections: 2, ..UserRights::default() });
    let both = [ann.connect().unwrap(), ann.connect().unwrap()];
    let error = ann.connect().unwrap_err();
    assert!(error.to_string().contains("its limit is 2") && error.is_retryable(), "{error}");
    drop(both);
    assert!(ann.connect().is_ok());
}

#[test]
fn a_user_who_uses_more_than_the_rate_has_to_rest() {
    let ann = user(UserRights { bytes_per_second: Some(1 << 20), ..UserRights::default() });
    assert_eq!(ann.charge_bytes(1 << 20), Duration::ZERO, "a second is saved up");
    let rest = ann.charge_bytes(4 << 20);
    assert!(rest > Duration::from_secs(3) && rest <= Duration::from_secs(4), "{rest:?}");
    assert_eq!(user(UserRights::default()).charge_bytes(usize::MAX >> 1), Duration::ZERO);
}

#[test]
fn who_is_taken_out_or_changed_is_revoked_and_who_stays_is_not() {
    let key = |name: &str, secret| UserKey::new(name, [secret; 32]).unwrap();
    let plain = UserRights::default();
    let of = |name: &str, secret, rights: &UserRights| (key(name, secret), rights.clone());
    let users = StoreUsers::new(vec![of("ann", 1, &plain), of("bob", 2, &plain)]).unwrap();
    let (ann, bob) = (users.find("ann").unwrap(), users.find("bob").unwrap());
    assert!(!users.replace(vec![of("bob", 2, &plain), of("ann", 1, &plain)]).unwrap());
    assert!(users.replace(vec![of("ann", 1, &plain), of("ann", 3, &plain)]).is_err());
    assert!(!ann.is_revoked() && users.find("bob").is_some(), "all stays");
    assert!(users.replace(vec![of("ann", 9, &plain)]).unwrap());
    assert!(ann.is_revoked() && bob.is_revoked());
    let secret = |name| users.find(name).map(|user| *user.secret());
    assert_eq!((secret("ann"), secret("bob")), (Some([9; 32]), None));
}
