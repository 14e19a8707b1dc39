// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/zoo"
)

// sharedPage registers a page of shared memory as region r and returns it as its owner sees it.
func sharedPage(t *testing.T, s *Server) *os.File {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "minitriton_test_")
	if err != nil {
		t.Skipf("no POSIX shared memory: %v", err)
	}
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, os.Remove(f.Name()))
	})
	require.NoError(t, f.Truncate(4096))
	require.Nil(t, s.regions.register("r", "/"+filepath.Base(f.Name()), 0, 4096))
	return f
}

// placed is a request for one row that lies in region r, and whose answer goes there.
func placed(t *testing.T, s *Server, m *model, from, to uint64) *request {
	t.Helper()
	in, refusal := s.regions.place("r", from, 8)
	require.Nil(t, refusal)
	out, refusal := s.regions.place("r", to, 8)
	require.Nil(t, refusal)
	r := &request{ctx: t.Context(), inputs: []tensor{{name: "INPUT", dtype: datatypeByName("FP32"), shape: []int64{1, 2}}},
		outputs: []requestedOutput{{name: "OUTPUT", place: out}}}
	r.hold(in)
	r.hold(out)
	m.load(&r.inputs[0], in)
	return r
}

func TestAnEmulatedModelUsesSharedMemoryWhereItIs(t *testing.T) {
	instant := zoo.Model{Name: "m", Profile: zoo.Profile{Model: "m"}, MaxBatchSize: 1, Dims: []int64{2}}
	one := []byte{0, 0, 0x80, 0x3f}
	three := []byte{0, 0, 0x40, 0x40}

	t.Run("what is there when it runs counts", func(t *testing.T) {
		s := emulator(t, Options{}, instant)
		f := sharedPage(t, s)
		m, refusal := s.repo.find("m", "")
		require.Nil(t, refusal)
		r := placed(t, s, m, 0, 64)
		_, err := f.WriteAt(append(one, one...), 0)
		require.NoError(t, err)
		resp, err := s.infer(m, "m", "", r)
		require.NoError(t, err)
		require.Nil(t, resp.err)
		require.Nil(t, m.finish(r, resp))
		require.True(t, resp.outputs[0].placed)
		have := make([]byte, 8)
		_, err = f.ReadAt(have, 64)
		require.NoError(t, err)
		require.Equal(t, append(three, three...), have)
		require.NotNil(t, s.regions.unregister("r"), "a request uses it")
		r.release()
		require.Nil(t, s.regions.unregister("r"))
	})

	t.Run("a region that goes before it runs fails it", func(t *testing.T) {
		s := emulator(t, Options{}, instant)
		sharedPage(t, s)
		m, refusal := s.repo.find("m", "")
		require.Nil(t, refusal)
		r := placed(t, s, m, 0, 64)
		r.release() // as when its caller leaves
		require.Nil(t, s.regions.unregister("r"))
		resp, err := s.infer(m, "m", "", r)
		require.NoError(t, err)
		require.ErrorContains(t, resp.err, "the shared memory of input 'INPUT' was dropped")
	})

	t.Run("a region that goes while it is read stays until it was", func(t *testing.T) {
		s := emulator(t, Options{}, instant)
		sharedPage(t, s)
		p, refusal := s.regions.place("r", 0, 8)
		require.Nil(t, refusal)
		window := p.pin()
		p.region.users.Add(-1)
		require.Nil(t, s.regions.unregister("r"))
		copy(window, one)
		require.Nil(t, p.pin(), "nobody else begins")
		p.unpin(window)
		require.Nil(t, p.region.mapped)
	})
}
