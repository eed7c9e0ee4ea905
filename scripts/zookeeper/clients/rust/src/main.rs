//! Calls of Rust's client (`zookeeper-client`) against replicas of ordered keys. Ends at the first
//! answer that differs from ZooKeeper's.
//!
//! ```text
//! zookeeper-clients SERVER,SERVER,...
//! ```

use std::time::Duration;

use zookeeper_client as zk;

/// No call may take longer: a client that waits for an answer under another number waits for ever.
const CALL_LIMIT: Duration = Duration::from_secs(20);

async fn connect(servers: &str) -> Result<zk::Client, zk::Error> {
    zk::Client::connector().with_session_timeout(Duration::from_secs(6)).connect(servers).await
}

async fn calls(servers: &str) -> Result<u32, zk::Error> {
    let mut checks = 0;
    let mut expect = |what: &str, good: bool| {
        assert!(good, "rust: {what}");
        checks += 1;
    };
    let (owner, other) = (connect(servers).await?, connect(servers).await?);
    let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let mine = zk::CreateMode::Persistent.with_acls(zk::Acls::creator_all());

    owner.auth("digest", b"desk:secret").await?;
    owner.create("/rust", b"a", &mine).await?;
    expect("read with the digest", owner.get_data("/rust").await?.0 == b"a");
    let refused = other.get_data("/rust").await;
    expect("read without the digest", matches!(refused, Err(zk::Error::NoAuth)));
    other.auth("digest", b"desk:secret").await?;
    expect("read after the digest", other.get_data("/rust").await?.0 == b"a");
    let users = other.list_auth_users().await?;
    expect("the digest's user is listed", users.iter().any(|user| user.scheme() == "digest"));

    let twice = owner.create("/rust", b"a", &open).await;
    expect("create twice", matches!(twice, Err(zk::Error::NodeExists)));
    let ephemeral = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    other.create("/rust/e", b"", &ephemeral).await?;
    let below = owner.create("/rust/e/x", b"", &open).await;
    expect("a child of an ephemeral", matches!(below, Err(zk::Error::NoChildrenForEphemerals)));
    let numbered = zk::CreateMode::PersistentSequential.with_acls(zk::Acls::anyone_all());
    let (_, number) = owner.create("/rust/s-", b"", &numbered).await?;
    expect("a sequence", number.to_string() == "0000000001");
    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
    let (stat, _) = owner.create("/rust/c", b"", &container).await?;
    expect("a container has no owner", stat.ephemeral_owner == 0);

    let mut whole = owner.new_multi_writer();
    whole.add_create("/rust/m", b"a", &open)?;
    whole.add_create("/rust/mc", b"a", &container)?;
    whole.add_set_data("/rust/m", b"b", Some(0))?;
    expect("a transaction", whole.commit().await.is_ok());
    let mut half = owner.new_multi_writer();
    half.add_delete("/rust/m", None)?;
    half.add_delete("/rust/none", None)?;
    expect("half a transaction", half.commit().await.is_err());
    expect("its first half is undone", owner.get_data("/rust/m").await?.0 == b"b");

    let mut tree = owner.watch("/rust", zk::AddWatchMode::PersistentRecursive).await?;
    let (_, once) = owner.check_and_watch_stat("/rust/e").await?;
    drop(other);
    expect("the event of a watch", once.changed().await.event_type == zk::EventType::NodeDeleted);
    let event = tree.changed().await;
    expect("the event of a tree", event.path == "/rust/e");
    let options = zk::LockOptions::new(zk::Acls::anyone_all()).with_ancestor_options(container)?;
    let prefix = zk::LockPrefix::new_curator("/rust/lock", "latch-")?;
    let lock = owner.lock(prefix, b"", options).await?;
    expect("a lock", lock.lock_path().starts_with("/rust/lock/"));
    Ok(checks)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let servers = std::env::args().nth(1).expect("SERVER,SERVER,...");
    let checks = tokio::time::timeout(CALL_LIMIT * 3, calls(&servers)).await;
    let checks = checks.expect("rust: a call has no answer");
    println!("rust: {} checks passed", checks.unwrap_or_else(|error| panic!("rust: {error}")));
}
