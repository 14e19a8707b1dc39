// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// TestWhatOneExecutionLeavesIsLentToTheNext: where it lies, if it is one piece.
func TestWhatOneExecutionLeavesIsLentToTheNext(t *testing.T) {
	p := shm.New(&server{}, shm.Options{Limit: 8 << 20})
	defer p.Close()
	a, b := take(t, p, 64<<10), take(t, p, 64<<10)
	first, second := a.Buffer(), b.Buffer()
	row := func(of mem.Buffer, from, to int) mem.Buffer { return of.Slice(from, to) }
	for _, c := range []struct {
		name   string
		data   mem.BufferSlice
		offset int
		ok     bool
	}{
		{"all of a block", mem.BufferSlice{first}, a.Offset(), true},
		{"a row of it", mem.BufferSlice{row(first, 1024, 4096)}, a.Offset() + 1024, true},
		{"rows that follow one another", mem.BufferSlice{row(first, 1024, 4096), row(first, 4096, 8192)}, a.Offset() + 1024, true},
		{"a row of a row", mem.BufferSlice{row(first.Slice(1024, 8192), 1024, 2048)}, a.Offset() + 2048, true},
		{"blocks that follow one another", mem.BufferSlice{first, second}, a.Offset(), true},
		{"rows in another order", mem.BufferSlice{row(first, 4096, 8192), row(first, 1024, 4096)}, 0, false},
		{"rows with one between them", mem.BufferSlice{row(first, 0, 1024), row(first, 2048, 4096)}, 0, false},
		{"a row that came through the socket", mem.BufferSlice{row(first, 0, 1024), mem.SliceBuffer(make([]byte, 1024))}, 0, false},
		{"nothing", nil, 0, false},
		{"what begins where no tensor may", mem.BufferSlice{row(first, 4, 1024)}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			lent, ok := p.Borrow(c.data)
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, batch.Extent{Region: a.Region(), Offset: c.offset, Size: c.data.Len()}, lent.Extent())
				lent.End(true)
			}
		})
	}
	region, offset, ok := shm.Locate(mem.BufferSlice{row(first, 4, 1024)})
	require.Equal(t, []any{a.Region(), a.Offset() + 4, true}, []any{region, offset, ok})
}

// TestABlockIsHeldByItsReaders: it is free when the last of them is done, and never if one of them was given up.
func TestABlockIsHeldByItsReaders(t *testing.T) {
	p := shm.New(&server{}, shm.Options{Limit: 8 << 20})
	defer p.Close()
	borrow := func() (one, other *shm.Borrowed) {
		b := take(t, p, 8<<20)
		buffer := b.Buffer()
		one, ok := p.Borrow(mem.BufferSlice{buffer})
		require.True(t, ok)
		other, ok = p.Borrow(mem.BufferSlice{buffer})
		require.True(t, ok)
		buffer.Free()
		return one, other
	}
	one, other := borrow()
	one.End(true)
	_, ok := p.Take(1)
	require.False(t, ok, "the other one reads it")
	other.End(true)
	one, other = borrow()
	one.End(false)
	other.End(true)
	_, ok = p.Take(1)
	require.False(t, ok, "a server may still read it")
}

func TestDiscardedMemoryIsNotLentToTheNext(t *testing.T) {
	p := shm.New(&server{}, shm.Options{Limit: 8 << 20})
	defer p.Close()
	buffer := take(t, p, 64<<10).Buffer()
	defer buffer.Free()
	p.Discard()
	_, ok := p.Borrow(mem.BufferSlice{buffer})
	require.False(t, ok, "the server has forgotten its region")
}

// untilBorrowed has the writer's pool write until the reader's one can lend it on.
func untilBorrowed(t *testing.T, writer, reader *shm.Pool, limit int) (written mem.Buffer, lent *shm.Borrowed) {
	t.Helper()
	require.Eventually(t, func() bool {
		b := take(t, writer, limit)
		copy(b.Data, "written by one")
		written = b.Buffer()
		var ok bool
		if lent, ok = reader.Borrow(mem.BufferSlice{written}); !ok {
			written.Free()
		}
		return ok
	}, 30*time.Second, time.Millisecond)
	return written, lent
}

// TestAServerReadsWhatAnotherOneHasWritten: the region is registered with both, and unregistered with both, and its name does not stay.
func TestAServerReadsWhatAnotherOneHasWritten(t *testing.T) {
	one, other := &server{}, &server{}
	writer, reader := shm.New(one, shm.Options{Limit: 8 << 20}), shm.New(other, shm.Options{Limit: 8 << 20})
	take(t, writer, 1).Free()
	written, lent := untilBorrowed(t, writer, reader, 8<<20)
	require.Eventually(t, func() bool { return one.count() == 1 }, 30*time.Second, time.Millisecond, "the region that the reader did not have has gone")
	at := lent.Extent()
	data := make([]byte, 14)
	_, err := other.regions[at.Region].ReadAt(data, int64(at.Offset))
	require.NoError(t, err)
	require.Equal(t, "written by one", string(data))
	require.Eventually(t, func() bool {
		left, err := filepath.Glob("/dev/shm/" + at.Region)
		return err == nil && len(left) == 0
	}, 30*time.Second, time.Millisecond)
	written.Free()
	_, ok := writer.Take(1)
	require.False(t, ok, "the reader reads it")
	lent.End(true)
	writer.Close()
	require.Eventually(t, func() bool { return other.count() == 0 }, 30*time.Second, time.Millisecond)
	require.Zero(t, one.count())
	reader.Close()
}

// TestAReaderThatIsStartedAgainGetsRegionsAnew: and one whose last word did not come keeps what it may read, for ever.
func TestAReaderThatIsStartedAgainGetsRegionsAnew(t *testing.T) {
	one, other := &server{}, &server{}
	writer, reader := shm.New(one, shm.Options{Limit: 16 << 20}), shm.New(other, shm.Options{Limit: 8 << 20})
	written, lent := untilBorrowed(t, writer, reader, 1<<20)
	region := lent.Extent().Region
	reader.Discard()
	_, ok := reader.Borrow(mem.BufferSlice{written})
	require.False(t, ok)
	lent.End(true)
	written.Free()
	written, lent = untilBorrowed(t, writer, reader, 1<<20)
	require.NotEqual(t, region, lent.Extent().Region)
	require.Eventually(t, func() bool { return one.count() == 1 && other.count() == 1 }, 30*time.Second, time.Millisecond)

	reader.Discard()
	lent.End(false)
	written.Free()
	region = lent.Extent().Region
	written, lent = untilBorrowed(t, writer, reader, 1<<20)
	require.NotEqual(t, region, lent.Extent().Region)

	at := lent.Extent()
	reader.Discard()
	lent.End(false)
	written.Free()
	for range 100 { // there is no room for further ones
		b, ok := writer.Take(1 << 20)
		require.True(t, ok)
		require.Equal(t, at.Region, b.Region())
		require.NotEqual(t, at.Offset, b.Offset())
		buffer := b.Buffer()
		_, ok = reader.Borrow(mem.BufferSlice{buffer})
		require.False(t, ok)
		buffer.Free()
	}
	writer.Close()
	reader.Close()
	require.Equal(t, []int{2, 2}, []int{one.count(), other.count()}, "the old server may still read its region")
}

// TestAReaderThatTakesNoRegionsIsNotAskedAgain: what it is to read is copied for it.
func TestAReaderThatTakesNoRegionsIsNotAskedAgain(t *testing.T) {
	one, other := &server{}, &server{fail: errors.New("shared memory is off")}
	writer, reader := shm.New(one, shm.Options{Limit: 16 << 20}), shm.New(other, shm.Options{Limit: 8 << 20})
	defer writer.Close()
	defer reader.Close()
	region := ""
	borrows := func() {
		b := take(t, writer, 8<<20)
		region = b.Region()
		buffer := b.Buffer()
		_, ok := reader.Borrow(mem.BufferSlice{buffer})
		require.False(t, ok)
		buffer.Free()
	}
	for began := time.Now(); other.asked() == 0 && time.Since(began) < 30*time.Second; { // it is asked in the background
		borrows()
	}
	require.Equal(t, 1, other.asked())
	for range 200 {
		borrows()
	}
	require.Equal(t, 1, other.asked())
	b := take(t, writer, 8<<20)
	require.Equal(t, region, b.Region(), "nothing is replaced for it any more")
	b.Free()
}
