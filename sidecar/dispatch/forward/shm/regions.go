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
// servers on this host. A server maps an object when its region is registered. It
// crashes with SIGBUS when it then touches a page that the object no longer has:
// any process that may open the object can make it shorter. So each object is kept
// open, and its size is checked when a request is about to use it. The object may
// still be made shorter after that, while the request is under way.
//
// Objects that cannot be opened from here are not watched: Missing is false for
// them.
type Regions struct {
	mu      sync.RWMutex
	watched int
	regions map[string]*clientRegion
}

// clientRegion is one region.
type clientRegion struct {
	offset, size uint64 // in its object
	// objects that servers have mapped: more than one where the object was
	// replaced under its name before a further server mapped it.
	objects []*os.File
}

// NewRegions makes an empty table. Close it.
func NewRegions() *Regions { return &Regions{regions: map[string]*clientRegion{}} }

// Registered records that a server has mapped size bytes from offset on of the
// object that key names now. An object that is too short for that is not recorded:
// the server has mapped another object of that name, in another container.
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

// Unregistered records that servers have unmapped a region, or all regions for an
// empty name.
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

// Close closes all objects.
func (r *Regions) Close() { r.Unregistered("") }

// Missing reports whether size bytes from offset on of a region reach into pages
// that its object no longer has. It is false for a place outside the region, which
// the server does not take. Offset and size must not overflow together.
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

// SameHost reports whether an endpoint can only be on this host.
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
