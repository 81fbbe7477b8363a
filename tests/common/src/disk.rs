//! A file system of the test's own, which is soon full.

use super::{Output, Scene, skip};
use std::process::Command;

/// Mounts a file system of a few megabytes in the scratch folder, if this user may.
pub fn small_disk(scene: &Scene, test: &str, megabytes: u32) -> bool {
    let dir = scene.path("disk");
    std::fs::create_dir(&dir).unwrap();
    let mount = ["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "none"];
    let out = Command::new("mount").args(mount).arg(&dir).output();
    let works = out.as_ref().is_ok_and(|o| o.status.success());
    if !works {
        skip(test, &format!("can't mount a small disk: {out:?}"));
    }
    works
}

/// Unmounts it.
pub fn unmount(scene: &Scene) -> Output {
    let mut command = Command::new("umount");
    command.arg("-l").arg(scene.path("disk"));
    scene.run(command).ok("umount")
}
