# `./dev check cgroup2`: the agent's tests of what control groups do, on an emulated machine whose kernel has
# version 2 of them alone. Version 1 is what many machines that build this have.

# The tests that need control groups, by the beginnings of their names.
CGROUP2_TESTS="walls:: escapes::nothing_of_a_job_outlives_its_supervisor running::a_job_that_takes_too_much_memory"
# Emulated instruction by instruction, a start takes a minute or two of a busy machine.
CGROUP2_SECONDS_MAX=900
CGROUP2_MEMORY_MIB=1536

# Sets $kernel to Debian's kernel; needs an emulator, a shell without libraries, and Perl.
need_emulator() {
    local missing=() package folder=$tools/kernel
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v strip >/dev/null || missing+=(binutils)
    if [ ${#missing[@]} -gt 0 ]; then
        may_apt && apt_install "${missing[@]}" ||
            fail "cgroup2: an emulated machine needs ${missing[*]}; install with: sudo apt-get install ${missing[*]}"
    fi
    kernel=$(ls "$folder"/boot/vmlinuz-* 2>/dev/null | tail -1)
    [ -z "$kernel" ] || return 0
    command -v apt-get >/dev/null || fail "cgroup2: Debian's kernel is fetched by apt-get, which is missing here"
    say "fetching Debian's kernel"
    rm -rf "$folder" && mkdir -p "$folder"
    may_apt && { apt-get update -qq >/dev/null 2>&1 || true; }
    package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    (cd "$folder" && apt-get download -qq "$package" >/dev/null 2>&1 && dpkg -x ./*.deb . && rm ./*.deb) ||
        fail "cgroup2: the kernel ${package:-linux-image-amd64} could not be fetched; try: apt-get download ${package:-linux-image-amd64}"
    kernel=$(ls "$folder"/boot/vmlinuz-* | tail -1)
}

# The agent's integration tests, built.
agent_tests() {
    cargo test --workspace --test it --no-run --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    if told.get("executable") and told.get("manifest_path", "").endswith("/agent/Cargo.toml") and told["target"]["name"] == "it":
        print(told["executable"])'
}

# Puts a program with the libraries that it is linked with below a root, at the same paths.
put_program() { # ROOT PATH
    local file
    for file in "$2" $(ldd "$2" 2>/dev/null | grep -o '/[^ ]*'); do
        [ -e "$1$file" ] && continue
        mkdir -p "$1$(dirname "$file")"
        strip -o "$1$file" "$file" 2>/dev/null || cp -L "$file" "$1$file"
        chmod 755 "$1$file"
    done
}

# Removes what the check made, however it ends.
clean_cgroup2() { rm -rf "$cgroup2_root" "$cgroup2_root.img"; }

check_cgroup2() {
    local tests program log=$PWD/target/test-logs/cgroup2.log
    need_build_tools
    need_emulator
    say "building"
    cargo build --workspace --quiet
    tests=$(agent_tests)
    [ -n "$tests" ] || fail "cgroup2: the agent's tests cannot be built; see: cargo test --workspace --test it --no-run"
    mkdir -p "$(dirname "$log")"
    cgroup2_root=$(mktemp -d /tmp/allotment-cgroup2-XXXXXX)
    trap clean_cgroup2 EXIT
    trap 'exit 130' INT TERM
    chmod 755 "$cgroup2_root"
    mkdir -p "$cgroup2_root"/{bin,dev,proc,sys,tmp,etc,var/tmp}
    cp "$(command -v busybox)" "$cgroup2_root/bin/busybox"
    put_program "$cgroup2_root" "$(readlink -f "$(command -v perl)")"
    # The modules that come with it.
    for program in /usr/lib/*/perl-base; do
        mkdir -p "$cgroup2_root${program%/*}" && cp -a "$program" "$cgroup2_root$program"
    done
    for program in "$tests" target/debug/{allotment-agent,nvml-sim-machine,nvml-sim-mps-control,libnvml_sim.so}; do
        put_program "$cgroup2_root" "$(readlink -f "$program")"
    done
    cat >"$cgroup2_root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# Not over a checkout that lies there.
for folder in /tmp /var/tmp; do
    [ -n "\$(ls -A \$folder)" ] || mount -t tmpfs tmpfs \$folder
    chmod 1777 \$folder
done
mount -t cgroup2 none /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ip link set lo up
echo "kernel \$(uname -r), controllers: \$(cat /sys/fs/cgroup/cgroup.controllers)"
$tests --test-threads 2 $CGROUP2_TESTS
echo "the tests ended with \$?"
poweroff -f
INIT
    chmod 755 "$cgroup2_root/init"
    # Whoever builds owns what is in it, and root is who runs it.
    (cd "$cgroup2_root" && find . | busybox cpio -o -H newc -R 0:0 2>/dev/null | gzip -1) >"$cgroup2_root.img"
    say "emulating a machine that has version 2 alone (at most $CGROUP2_SECONDS_MAX s)"
    # Without hardware's help: a machine that is one itself often has none that works.
    timeout "$CGROUP2_SECONDS_MAX" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -cpu max -m "$CGROUP2_MEMORY_MIB" \
        -display none -serial stdio -monitor none -no-reboot -nic none -kernel "$kernel" -initrd "$cgroup2_root.img" \
        -append "console=ttyS0 quiet panic=-1 cgroup_no_v1=all" </dev/null | tr -d '\r' | tee "$log"
    grep -q '^the tests ended with 0$' "$log" || fail "cgroup2: a test failed, or the machine did not come up; see $log"
    ! grep -q 'NOT CHECKED' "$log" || fail "cgroup2: something was not checked; see $log"
}
