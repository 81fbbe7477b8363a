//! "go": allocates five boxes of 128 bytes, which are kept.

use std::io::{BufRead, Write};

#[inline(never)]
fn block(n: u8) -> Box<[u8; 128]> {
    std::hint::black_box(Box::new([n; 128])) // @rust_block
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{word}").and_then(|()| out.flush()).expect("stdout");
}

fn main() {
    let mut blocks: Vec<Box<[u8; 128]>> = Vec::with_capacity(64);
    let mut line = String::with_capacity(64);
    say("ready");
    while std::io::stdin().lock().read_line(&mut line).expect("stdin") > 0 {
        match line.trim() {
            "go" => {
                for _ in 0..5 {
                    blocks.push(block(blocks.len() as u8));
                }
                let right = |(i, b): (usize, &Box<[u8; 128]>)| b.iter().all(|x| *x == i as u8);
                assert!(blocks.iter().enumerate().all(right));
                say("done");
            }
            "quit" => {
                say("bye");
                break;
            }
            _ => {}
        }
        line.clear();
    }
}
