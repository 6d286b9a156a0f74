# Takes and uses file handles, for which there is no common tool.
#
# usage: handle.pl take FILE...   prints one handle per file, as hexadecimal digits
#        handle.pl read MOUNT     reads such lines, prints the first line of each file they lead to
use strict;
use warnings;
use POSIX qw(uname);

my ($name_to_handle_at, $open_by_handle_at) = (uname)[4] eq 'x86_64' ? (303, 304) : (264, 265);
my $AT_FDCWD = -100;
my $HANDLE_BYTES_MAX = 128;

my $what = shift @ARGV;
if ($what eq 'take') {
    for my $file (@ARGV) {
        # struct file_handle: bytes, type, and the handle itself.
        my $handle = pack('Ii', $HANDLE_BYTES_MAX, 0) . "\0" x $HANDLE_BYTES_MAX;
        my $mount_id = pack 'i', 0;
        syscall($name_to_handle_at, $AT_FDCWD, $file, $handle, $mount_id, 0) == 0
            or die "name_to_handle_at $file: $!\n";
        my $length = unpack 'I', $handle;
        print unpack('H*', substr $handle, 0, 8 + $length), "\n";
    }
} else {
    open my $mount, '<', $ARGV[0] or die "open $ARGV[0]: $!\n";
    while (my $line = <STDIN>) {
        chomp $line;
        my $handle = pack 'H*', $line;
        my $fd = syscall $open_by_handle_at, fileno $mount, $handle, 0;
        die "open_by_handle_at: $!\n" if $fd < 0;
        open my $file, '<&=', $fd or die "fdopen: $!\n";
        print scalar <$file>;
        close $file;
    }
}
