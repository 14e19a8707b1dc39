// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"fmt"
	"io/fs"
	"syscall"
)

// identity is what stat says of a file: while it stays, so does the content.
// The change time cannot be set back, the modification time can.
func identity(path string, info fs.FileInfo) (key []byte, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, false
	}
	return fmt.Appendf(nil, "%d %d %d %o %d.%d %d.%d %s", st.Dev, st.Ino, st.Size, st.Mode, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, path), true
}
