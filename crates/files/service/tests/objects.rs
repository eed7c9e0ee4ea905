//! The tests of the crate `object_store` for its implementations.

use evenfall_files_service::FileObjects;
use object_store::integration;

use super::cluster::Cluster;

#[test]
fn files_are_objects_as_the_crate_object_store_expects_them() {
    let cluster = Cluster::new(2);
    // The first request waits for the servers.
    cluster.client().change("/objects", "MKDIRS", &[]).expect("it lives");
    let server = cluster.addresses[0].to_string();
    // Each test expects no objects.
    let below = |folder| FileObjects::new(&server, folder, "ann");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        integration::put_get_delete_list(&below("/objects/a")).await;
        integration::get_opts(&below("/objects/b")).await;
        integration::put_opts(&below("/objects/c"), true).await;
        integration::stream_get(&below("/objects/d")).await;
        integration::list_uses_directories_correctly(&below("/objects/e")).await;
        integration::list_with_delimiter(&below("/objects/f")).await;
        integration::list_with_offset_exclusivity(&below("/objects/g")).await;
        integration::rename_and_copy(&below("/objects/h")).await;
        integration::copy_if_not_exists(&below("/objects/i")).await;
        integration::copy_rename_nonexistent_object(&below("/objects/j")).await;
        let missing = integration::get_nonexistent_object(&below("/objects/k"), None).await;
        missing.expect_err("it is not there");
    });
}
