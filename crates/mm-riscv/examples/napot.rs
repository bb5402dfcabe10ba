//! What the words of a block look like, and what is read from them.
//!
//! ```text
//! cargo run -p mm-riscv --example napot
//! ```

use mm_arch::{Arch, Entry, Held, Level, Pfn, Protection};
use mm_riscv::{Riscv, Sv48};

type A = Riscv<Sv48>;

fn main() {
    let table = A::new_table();
    let prot = A::prot(Protection::private_read_write());
    A::fill(&table, 14, 20, <A as Arch>::Entry::leaf(Pfn::new(0x5_000e), prot, Level::Pte));
    for i in 13..35 {
        let word = A::read_upper::<Held>(&table, i).bits();
        let e = A::read::<Held>(&table, i);
        if e.is_none() {
            println!("{i:2}: {word:#018x}  empty");
        } else {
            println!("{i:2}: {word:#018x}  frame {}", e.pfn(Level::Pte));
        }
    }
}
