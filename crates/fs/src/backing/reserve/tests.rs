use lockstep_lossy::disk::{Disk, DiskOptions};

use super::*;

const PAGE: u64 = 4096;
const WITHHELD: Withheld = Withheld {
    reserve_bytes: 8 * PAGE,
    spare_bytes: 2 * PAGE,
    spare_files: 3,
};

/// A disk of this many pages and files, with its reserve filled.
fn filled(pages: u64, files: u64) -> (Disk, Reserved, Arc<Reserve>) {
    let disk = Disk::new(DiskOptions {
        capacity_bytes: pages * PAGE,
        capacity_files: files,
    });
    let (reserved, reserve) = Reserved::over(disk.mount(), WITHHELD);
    assert!(reserve.fill().unwrap());
    (disk, reserved, reserve)
}

fn full(result: io::Result<()>) {
    assert!(is_full(&result.unwrap_err()));
}

/// Another program takes all space that is left.
fn fill_up(disk: &Disk) {
    let ballast = disk.mount().open_or_create("ballast").unwrap();
    let left = disk.mount().space().unwrap().available_bytes;
    ballast.allocate(0, left, false).unwrap();
}

#[test]
fn clients_have_neither_the_reserve_nor_the_spare() {
    let (_disk, reserved, _) = filled(100, 50);
    let space = reserved.space().unwrap();
    assert_eq!(space.available_bytes, (100 - 8 - 2) * PAGE);
    assert_eq!((space.total_files, space.free_files), (50, 49 - 3));
}

#[test]
fn a_full_disk_takes_bookkeeping_and_no_content() {
    let (disk, reserved, reserve) = filled(100, 50);
    let content = reserved.open_or_create("content/0/7").unwrap();
    let log = reserved.open_or_create("log/intent.0").unwrap();
    fill_up(&disk);
    full(content.write_at(0, b"x"));
    full(content.allocate(0, PAGE, true));
    assert_eq!(reserve.lacking(), 0, "content opens no reserve");
    log.write_at(0, &[1; 3 * 4096]).unwrap();
    assert_eq!(reserve.lacking(), 8 * PAGE);
    assert_eq!(reserved.space().unwrap().available_bytes, 0);
    reserved.open_table("tables/t", 4096).unwrap();
}

#[test]
fn the_reserve_comes_back_with_the_room_and_not_before() {
    let (disk, reserved, reserve) = filled(100, 50);
    fill_up(&disk);
    let log = reserved.open_or_create("log/intent.0").unwrap();
    log.write_at(0, &[1; 3 * 4096]).unwrap();
    assert!(!reserve.fill().unwrap());
    disk.mount()
        .open("ballast")
        .unwrap()
        .set_len(80 * PAGE)
        .unwrap();
    assert!(reserve.fill().unwrap());
    assert_eq!(reserve.lacking(), 0);
    let again = Reserved::over(disk.mount(), WITHHELD).1;
    assert_eq!(again.lacking(), 0, "also for the next process");
}

#[test]
fn a_disk_without_an_inode_gets_that_of_the_reserve() {
    // `ballast`, `reserve`, and the directory `d` with a file.
    let (disk, reserved, reserve) = filled(100, 8);
    let mut names = 0;
    while disk.mount().open_or_create(&format!("d{names}")).is_ok() {
        names += 1;
    }
    assert!(disk.mount().open_or_create("more").is_err());
    reserved.open_or_create("role.json.new").unwrap();
    assert!(!disk.mount().exists(RESERVE_FILE).unwrap());
    assert!(!reserve.fill().unwrap(), "there is no inode for it");
    full(reserved.open_or_create("more").map(drop));
}

#[test]
fn content_can_be_cut_on_a_full_disk() {
    let (disk, reserved, _) = filled(100, 50);
    let content = reserved.open_or_create("content/0/7").unwrap();
    content.write_at(0, &[1; 4 * 4096]).unwrap();
    fill_up(&disk);
    content.punch_hole(0, PAGE).unwrap();
    content.set_len(PAGE).unwrap();
    drop(content);
    reserved.remove("content/0/7").unwrap();
}

#[test]
fn every_error_but_a_full_disk_is_passed_on_at_once() {
    let (disk, reserved, reserve) = filled(100, 50);
    disk.fail_call(lockstep_lossy::disk::CallClass::Name, 1, Errno::Io);
    let error = reserved.open_or_create("role.json").map(drop).unwrap_err();
    assert_eq!(os_code(&error), Some(Errno::Io.code()));
    assert_eq!(reserve.lacking(), 0);
}
