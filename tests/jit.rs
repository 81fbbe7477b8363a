//! Names of generated code, from the files that its compiler has written.

use common::build::program_with;
use common::{Report, Scene, Target};

/// Returns the frames of `generated.c` outside of modules, with their addresses.
#[track_caller]
fn made(r: &Report) -> Vec<(u64, String)> {
    let frames = r.marked("generated.c", "inner").frames();
    let at = |name: &str| frames.iter().position(|f| f.function() == name).expect("a frame");
    let (inner, middle) = (at("inner"), at("middle"));
    frames[inner + 1..middle].iter().map(|f| (f.address(), f.function().to_owned())).collect()
}

/// Returns a dump with one function.
fn dump(start: u64, len: u64, name: &str) -> Vec<u8> {
    let n4 = |n: u32| n.to_ne_bytes().to_vec();
    let n8 = |n: u64| n.to_ne_bytes().to_vec();
    let head = [n4(0x4a69_5444), n4(1), n4(40), n4(0), n4(0), n4(1), n8(0), n8(0)].concat();
    let body = [n4(1), n4(1), n8(start), n8(start), n8(len), n8(1)].concat();
    let body = [body, name.as_bytes().to_vec(), vec![0; 1 + len as usize]].concat();
    [head, n4(0), n4(16 + body.len() as u32), n8(1), body].concat()
}

#[test]
fn of_two_lines_over_an_address_the_later_one_counts_and_dumps_are_read() {
    let scene = Scene::new("jit");
    let program = program_with("generated.c", &["-O2", "-fno-omit-frame-pointer"]);
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    let nameless = made(&scene.finished(&recording));
    assert_eq!(nameless.len(), 3, "{nameless:x?}");
    let address = nameless[1].0 & !0xf;
    let folder = scene.dir.to_str().expect("UTF-8");
    let named = || {
        let r = scene.report_with(&recording, &["--debug-path", folder, "--no-symbol-cache"]);
        made(&r).into_iter().find(|f| f.0 == nameless[1].0).expect("the frame").1
    };
    std::fs::write(scene.path(&format!("jit-{}.dump", target.pid)), dump(address, 32, "dumped"))
        .expect("written");
    assert_eq!(named(), "dumped");
    // A dead function that begins later, and one in its place that begins before it.
    let map = format!("{:x} 30 dead\n{:x} 60 alive\n", address - 4, address - 16);
    std::fs::write(scene.path(&format!("perf-{}.map", target.pid)), map).expect("written");
    assert_eq!(named(), "alive");
}
