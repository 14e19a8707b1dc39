// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"net"
	"os"
	"strings"
	"sync"
)

// maxWatched bounds the objects that are kept open: each takes a descriptor.
const maxWatched = 1024

// Regions are the system shared memory regions that clients have registered with
// servers on this host. A server maps an object when its region is registered,
// and dies of SIGBUS when it then touches a page that the object no longer has:
// whoever may open it can make it shorter. So each object is kept open, and asked
// for its size when a request is about to use it. The object may be made shorter
// after that all the same, in the time that the request takes.
//
// What cannot be seen from here is not watched: Missing says nothing of it.
type Regions struct {
	mu      sync.RWMutex
	watched int
	regions map[string]*clientRegion
}

// clientRegion is one region.
type clientRegion struct {
	offset, size uint64 // in its object
	// objects that servers have mapped: more than one where the object was replaced
	// under its name before a further server was told.
	objects []*os.File
}

// NewRegions makes an empty table. Close it.
func NewRegions() *Regions { return &Regions{regions: map[string]*clientRegion{}} }

// Registered says that a server has mapped size bytes from offset on of the
// object that key names now. An object that is too short for that is none that a
// server could have mapped: it has another by that name, in another container.
func (r *Regions) Registered(name, key string, offset, size uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched >= maxWatched {
		return
	}
	object, err := openObject(key)
	if err != nil {
		return
	}
	region := r.regions[name]
	if region == nil {
		region = &clientRegion{offset: offset, size: size}
	}
	if region.offset != offset || region.size != size || lacks(object, offset+size) || region.has(object) {
		_ = object.Close() // it was only read
		return
	}
	region.objects = append(region.objects, object)
	r.regions[name] = region
	r.watched++
}

func (c *clientRegion) has(object *os.File) bool {
	info, err := object.Stat()
	if err != nil {
		return false
	}
	for _, o := range c.objects {
		if known, err := o.Stat(); err == nil && os.SameFile(known, info) {
			return true
		}
	}
	return false
}

// Unregistered says that servers have let go of a region, or of all for an empty
// name.
func (r *Regions) Unregistered(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, region := range r.regions {
		if name != "" && n != name {
			continue
		}
		for _, o := range region.objects {
			_ = o.Close() // it was only read
			r.watched--
		}
		delete(r.regions, n)
	}
}

// Close lets go of everything.
func (r *Regions) Close() { r.Unregistered("") }

// Missing reports whether size bytes from offset on of a region reach into pages
// that its object no longer has. A place outside the region is the server's to
// refuse. Offset and size must not overflow together.
func (r *Regions) Missing(name string, offset, size uint64) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	region := r.regions[name]
	if region == nil || size == 0 || offset+size > region.size {
		return false
	}
	for _, o := range region.objects {
		if lacks(o, region.offset+offset+size) {
			return true
		}
	}
	return false
}

// SameHost reports that an endpoint can only be on this host.
func SameHost(endpoint string) bool {
	if strings.HasPrefix(endpoint, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
