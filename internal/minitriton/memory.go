// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// regions are the registered system shared memory regions, by name.
type regions struct {
	mu sync.Mutex
	m  map[string]*region
}

// region is a part of a POSIX shared memory object, mapped.
type region struct {
	status *pb.SystemSharedMemoryStatusResponse_RegionStatus

	users atomic.Int32 // requests that have a tensor in it

	mu      sync.Mutex
	mapped  []byte
	pins    int  // executions that read or write it now
	dropped bool // unregistered: it is unmapped with the last pin
}

// register maps a region. Triton 2.51 registers a key only once, whatever the name: a second region of it is invalid.
func (r *regions) register(name, key string, offset, size uint64) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[name] != nil {
		return refuse(codes.AlreadyExists, "shared memory region '%s' already in manager", name)
	}
	base := strings.TrimLeft(key, "/")
	if base == "" || base != filepath.Base(base) || base == ".." {
		return refuse(codes.Internal, "Unable to open shared memory region: '%s'", key)
	}
	f, err := os.OpenFile(filepath.Join("/dev/shm", base), os.O_RDWR, 0)
	if err != nil {
		return refuse(codes.Internal, "Unable to open shared memory region: '%s'", key)
	}
	defer func() { _ = f.Close() }() // the mapping stays
	for _, other := range r.m {
		if other.status.Key == key {
			return refuse(codes.Internal, "Invalid shared memory region: '%s'", key)
		}
	}
	if info, err := f.Stat(); err != nil || offset+size > uint64(info.Size()) {
		return invalid("failed to register shared memory region '%s': invalid args", name)
	}
	mapped, err := syscall.Mmap(int(f.Fd()), int64(offset), int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		reason := err.Error()
		if errors.Is(err, syscall.EINVAL) {
			reason = "Invalid argument" // an offset that is not a multiple of the page size, or no bytes
		}
		return invalid("failed to register shared memory region '%s': unable to process address space%s", name, reason)
	}
	if r.m == nil {
		r.m = map[string]*region{}
	}
	r.m[name] = &region{mapped: mapped, status: &pb.SystemSharedMemoryStatusResponse_RegionStatus{Name: name, Key: key, Offset: offset, ByteSize: size}}
	return nil
}

// unregister drops a region, or all of them for an empty name. A region that is not there is none to drop; one that a request uses stays.
func (r *regions) unregister(name string) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var used []string
	for _, n := range slices.Sorted(maps.Keys(r.m)) {
		region := r.m[n]
		switch {
		case name != "" && n != name:
		case region.users.Load() > 0:
			used = append(used, n)
		default:
			region.unmap()
			delete(r.m, n)
		}
	}
	switch {
	case len(used) == 0:
		return nil
	case name != "":
		return refuse(codes.Internal, "Cannot unregister shared memory region '%s', it is currently in use.", name)
	default:
		return refuse(codes.Internal, "Failed to unregister the following system shared memory regions: %s ,", strings.Join(used, " "))
	}
}

// drop unmaps everything, also what is in use.
func (r *regions) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, region := range r.m {
		region.unmap()
	}
	clear(r.m)
}

func (r *region) unmap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped = true
	r.unmapUnpinned()
}

// unmapUnpinned unmaps the memory of a dropped region that has no pins. Guarded by mu.
func (r *region) unmapUnpinned() {
	if r.dropped && r.pins == 0 && r.mapped != nil {
		_ = syscall.Munmap(r.mapped) // fails only for what was never mapped
		r.mapped = nil
	}
}

func (r *regions) status(name string) (map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus, *Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus{}
	for n, region := range r.m {
		if name == "" || n == name {
			out[n] = region.status
		}
	}
	if name != "" && len(out) == 0 {
		return nil, refuse(codes.NotFound, "Unable to find system shared memory region: '%s'", name)
	}
	return out, nil
}

// placement is a tensor's place in a region, which stays registered until the placement is released.
type placement struct {
	region       *region
	offset, size uint64
}

// place finds a tensor's place. The bounds are checked as Triton checks them, which lets sizes through that wrap around; read and write
// stay inside the region nevertheless.
func (r *regions) place(name string, offset, size uint64) (*placement, *Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	region := r.m[name]
	switch {
	case region == nil:
		return nil, refuse(codes.NotFound, "Unable to find shared memory region: '%s'", name)
	case offset >= region.status.ByteSize:
		return nil, invalid("Invalid offset for shared memory region: '%s'", name)
	case offset+size-1 > region.status.ByteSize-1:
		return nil, invalid("Invalid offset + byte size for shared memory region: '%s'", name)
	}
	region.users.Add(1)
	return &placement{region: region, offset: offset, size: size}, nil
}

// pin gives the memory itself, which stays mapped until unpin, whatever becomes of the region. It is nil if the region has been dropped.
func (p *placement) pin() []byte {
	p.region.mu.Lock()
	defer p.region.mu.Unlock()
	if p.region.dropped {
		return nil
	}
	p.region.pins++
	return p.window()
}

// unpin ends the use of what pin gave, if it gave something.
func (p *placement) unpin(window []byte) {
	if window == nil {
		return
	}
	p.region.mu.Lock()
	defer p.region.mu.Unlock()
	p.region.pins--
	p.region.unmapUnpinned()
}

// read copies the data out, so that the caller may drop the region while the request runs.
func (p *placement) read() []byte {
	window := p.pin()
	defer p.unpin(window)
	return bytes.Clone(window)
}

// write puts the data in place, unless the region has been dropped meanwhile.
func (p *placement) write(data []byte) {
	window := p.pin()
	defer p.unpin(window)
	copy(window, data)
}

// load gives an input its data: the memory itself where the model reads it in place, as Triton has all its backends do, else a copy.
func (m *model) load(t *tensor, p *placement) {
	if !m.inPlace {
		t.data = p.read()
		return
	}
	window := p.pin()
	defer p.unpin(window)
	t.data, t.place = window, p
}

// window is never nil: it may be empty. Guarded by the region's mu.
func (p *placement) window() []byte {
	if p.offset >= uint64(len(p.region.mapped)) {
		return []byte{}
	}
	rest := p.region.mapped[p.offset:]
	return rest[:min(p.size, uint64(len(rest)))]
}
