// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"
)

// Nobody reads what comes for an inner server that has closed its connection, while the client's is about to end: nothing is kept for it.
func TestNothingIsKeptForAnInnerServerThatHasClosed(t *testing.T) {
	in := newInnerConn(&serverConn{})
	in.close()
	before := len(in.waiting)
	in.headers(1, []hpack.HeaderField{{Name: ":path", Value: "/"}}, false)
	in.write(appendReset(nil, 1, 0))
	require.Len(t, in.waiting, before)
}
