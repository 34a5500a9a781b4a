#!/bin/sh
# Build a Python with musl, to try the musllinux wheel where there is no Alpine: release/musl_python.sh FOLDER [SUITE]
#
# The sources are those of Debian's packages (python3.13, libffi, zlib), from the archive that apt uses here. It has
# ctypes and zlib and neither ssl nor pip: release/check.py --musl FOLDER/python/bin/python3.13 installs for it.
# Needs musl-tools, autoconf, automake, libtool and patchelf.
# apt expands $(REPO_URI), and the options are several words:
# shellcheck disable=SC2016,SC2086
set -eu

mkdir -p "$1/inc" "$1/lists/partial"
here=$(cd "$1" && pwd)
cd "$here"
out=$here/python
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
for kind in deb deb-src; do echo "$kind [signed-by=$keys] $mirror ${2:-trixie} main"; done > sources.list
options="-o Dir::Etc::sourcelist=$here/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$here/lists
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
apt-get $options update
apt-get $options source --download-only python3.13 libffi zlib
apt-get $options download "musl/${2:-trixie}"
for archive in python3.13_*.orig.tar.xz libffi_*.orig.tar.gz zlib_*.orig.tar.gz; do tar -xf "$archive"; done

# musl-gcc has no headers of the kernel, and answers with the platform of the system's compiler.
ln -sfn /usr/include/linux inc/linux
ln -sfn /usr/include/asm-generic inc/asm-generic
ln -sfn "/usr/include/$(gcc -print-multiarch)/asm" inc/asm
cat > compiler <<END
#!/bin/sh
for word in "\$@"; do [ "\$word" = --print-multiarch ] && exec echo "$(uname -m)-linux-musl"; done
exec musl-gcc "\$@" -idirafter "$here/inc"
END
chmod +x compiler
export CC="$here/compiler"

(cd libffi-*/ && ./autogen.sh && ./configure --prefix="$out" --libdir="$out/lib" --disable-shared --with-pic --disable-docs && make -j2 install)
(cd zlib-*/ && CFLAGS="-O2 -fPIC" ./configure --prefix="$out" --static && make libz.a && cp libz.a "$out/lib" && cp zlib.h zconf.h "$out/include")
cd Python-3.13*/
# The other libraries that configure finds are the system's, built with glibc.
printf '%s\n' '*disabled*' _lzma _bz2 _ssl _hashlib _sqlite3 readline _curses _curses_panel _gdbm _dbm _tkinter _uuid > Modules/Setup.local
./configure --prefix="$out" --without-ensurepip --disable-test-modules LDFLAGS="-static-libgcc" \
    LIBFFI_CFLAGS="-I$out/include" LIBFFI_LIBS="-L$out/lib -lffi" ZLIB_CFLAGS="-I$out/include" ZLIB_LIBS="-L$out/lib -lz"
make -j2 install
# Libraries in the wheels of NumPy need musl 1.2.4 or newer (DT_RELR), which the system may not have.
dpkg -x "$here"/musl_*.deb "$here/musl"
patchelf --set-interpreter "$here/musl/usr/lib/$(uname -m)-linux-musl/libc.so" "$out/bin/python3.13"
"$out/bin/python3.13" -c 'import ctypes, zlib'
echo "$out/bin/python3.13"
