// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server opens the objects that are registered with it, as Triton does.
type server struct {
	fail error

	mu      sync.Mutex
	regions map[string]*os.File
	calls   int
}

func (s *server) Register(_ context.Context, region, key string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		return s.fail
	}
	f, err := os.Open(filepath.Join("/dev/shm", key))
	if err != nil {
		return err
	}
	if s.regions == nil {
		s.regions = map[string]*os.File{}
	}
	s.regions[region] = f
	return nil
}

func (s *server) Unregister(_ context.Context, region string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.regions[region]
	if f == nil {
		return errors.New("no such region")
	}
	delete(s.regions, region)
	return f.Close()
}

func (s *server) read(t *testing.T, b *shm.Block) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := make([]byte, len(b.Data))
	_, err := s.regions[b.Region()].ReadAt(data, int64(b.Offset()))
	require.NoError(t, err)
	return string(data)
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.regions)
}

// asked is how often it was to register something.
func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// take asks until the pool has grown.
func take(t require.TestingT, p *shm.Pool, n int) *shm.Block {
	for range 5000 {
		if b, ok := p.Take(n); ok {
			return b
		}
		time.Sleep(time.Millisecond)
	}
	require.Fail(t, "the pool does not grow")
	return nil
}

func TestTheServerReadsWhatWasWritten(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 32 << 20})
	_, ok := p.Take(100)
	require.False(t, ok, "there is nothing yet; nobody waits for it")
	a, b := take(t, p, 100), take(t, p, 5000)
	copy(a.Data, strings.Repeat("a", 100))
	copy(b.Data, strings.Repeat("b", 5000))
	require.Equal(t, strings.Repeat("a", 100), s.read(t, a))
	require.Equal(t, strings.Repeat("b", 5000), s.read(t, b))
	require.True(t, batch.LentRegion(a.Region()))
	leftovers, err := filepath.Glob("/dev/shm/" + a.Region())
	require.NoError(t, err)
	require.Empty(t, leftovers, "a crash must leave nothing behind")
	a.Free()
	b.Free()
	p.Close()
	require.Zero(t, s.count(), "the server was told")
}

func TestTheLimitHolds(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 16 << 20})
	defer p.Close()
	first, second := take(t, p, 8<<20), take(t, p, 8<<20)
	_, ok := p.Take(1)
	require.False(t, ok)
	_, ok = p.Take(1 << 40)
	require.False(t, ok)
	first.Free()
	again, ok := p.Take(8 << 20)
	require.True(t, ok)
	again.Free()
	second.Free()
	require.Equal(t, 2, s.count())
}

func TestAServerThatRefusesIsNotAskedAgainUntilItHasChanged(t *testing.T) {
	s := &server{fail: errors.New("shared memory is off")}
	p := shm.New(s, shm.Options{Limit: 16 << 20})
	defer p.Close()
	require.Eventually(t, func() bool {
		_, ok := p.Take(1)
		return !ok && s.asked() == 1
	}, 30*time.Second, time.Millisecond)
	for range 100 {
		_, ok := p.Take(1)
		require.False(t, ok)
	}
	require.Equal(t, 1, s.asked())
	s.mu.Lock()
	s.fail = nil
	s.mu.Unlock()
	p.Discard()
	take(t, p, 1).Free()
}

func TestDiscardedMemoryStaysUntilItIsFreed(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 8 << 20})
	old := take(t, p, 10)
	copy(old.Data, "0123456789")
	p.Discard()
	fresh := take(t, p, 10)
	require.NotEqual(t, old.Region(), fresh.Region(), "the server may still write to the old one")
	require.Equal(t, "0123456789", string(old.Data))
	old.Free()
	fresh.Free()
	p.Close()
	require.Zero(t, s.count())
}

// TestAForsakenBlockIsNeverLentAgain: nor is its region unregistered, because the server may still write there.
func TestAForsakenBlockIsNeverLentAgain(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 8 << 20})
	first := take(t, p, 1<<20)
	region, offset := first.Region(), first.Offset()
	first.Forsake()
	for range 100 {
		b, ok := p.Take(1 << 20)
		require.True(t, ok)
		require.False(t, b.Region() == region && b.Offset() == offset)
		b.Free()
	}
	_, ok := p.Take(8 << 20)
	require.False(t, ok, "it counts against the limit")
	p.Discard()
	p.Close()
	require.Equal(t, 1, s.count(), "its region stays registered")
}

// TestTheLimitHoldsThroughLosses: what is forsaken once the server was lost counts, because it may be the same server that is found again, until that has
// ended.
func TestTheLimitHoldsThroughLosses(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 16 << 20})
	defer p.Close()
	for range 2 {
		b := take(t, p, 1<<20)
		p.Discard()
		b.Forsake()
	}
	for range 100 {
		_, ok := p.Take(1)
		require.False(t, ok)
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, 2, s.count())
	p.Ended()
	take(t, p, 1).Free()
}

// TestARegionIsUnregisteredOnceNothingOfItIsLent: an execution may still use it before.
func TestARegionIsUnregisteredOnceNothingOfItIsLent(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 8 << 20})
	defer p.Close()
	b := take(t, p, 1<<20)
	p.Discard()
	require.Equal(t, 1, s.count())
	b.Free()
	require.Eventually(t, func() bool { return s.count() == 0 }, 30*time.Second, time.Millisecond)
}

func TestABufferGivesTheBlockBack(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 8 << 20})
	defer p.Close()
	b := take(t, p, 8<<20)
	copy(b.Data, "hello")
	buffer := b.Buffer()
	part := buffer.Slice(0, 5)
	buffer.Free()
	_, ok := p.Take(1)
	require.False(t, ok, "a slice of it is in use")
	require.Equal(t, "hello", string(part.ReadOnlyData()))
	part.Free()
	small := take(t, p, 5)
	copy(small.Data, "small")
	kept := small.Buffer()
	again, ok := p.Take(8 << 20)
	require.True(t, ok, "what is small is copied")
	require.Equal(t, "small", string(kept.ReadOnlyData()))
	kept.Free()
	again.Free()
}

// Blocks that are lent at the same time never overlap, and all are given back.
func TestBlocksNeverOverlap(t *testing.T) {
	s := &server{}
	p := shm.New(s, shm.Options{Limit: 8 << 20})
	defer p.Close()
	take(t, p, 1).Free()
	rapid.Check(t, func(t *rapid.T) {
		lent := map[*shm.Block]byte{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(1, 3<<20).Draw(t, "bytes")
				b, ok := p.Take(n)
				if !ok {
					return
				}
				mark := byte(len(lent) + 1)
				b.Data[0], b.Data[n-1] = mark, mark
				lent[b] = mark
			},
			"free": func(t *rapid.T) {
				for b, mark := range lent {
					if b.Data[0] != mark || b.Data[len(b.Data)-1] != mark {
						t.Fatalf("a block of %d bytes was overwritten", len(b.Data))
					}
					b.Free()
					delete(lent, b)
					return
				}
			},
		})
		for b := range lent {
			b.Free()
		}
		b, ok := p.Take(8 << 20)
		if !ok {
			t.Fatal("not everything came back")
		}
		b.Free()
	})
}
