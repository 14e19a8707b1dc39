// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

// lattice numbers the loads up to a most one, and holds a set of them that is closed downwards, one bit each.
type lattice struct {
	most   Load
	models []int // that the most load has, by their index
	radix  []int
	stride []int
	size   int
	bits   []uint64
}

func newLattice(most Load) *lattice {
	l := &lattice{most: most, size: 1}
	for i := range maxModels {
		if n := most.Of(i); n > 0 {
			l.models, l.radix, l.stride = append(l.models, i), append(l.radix, n+1), append(l.stride, l.size)
			l.size *= n + 1
		}
	}
	l.bits = make([]uint64, (l.size+63)/64)
	return l
}

// number of a load that lies within the most.
func (l *lattice) number(v Load) int {
	at := 0
	for k, i := range l.models {
		at += v.Of(i) * l.stride[k]
	}
	return at
}

// load is the inverse of number.
func (l *lattice) load(at int) (v Load) {
	for k, i := range l.models {
		v = v.With(i, at/l.stride[k]%l.radix[k])
	}
	return v
}

func (l *lattice) has(at int) bool { return l.bits[at>>6]>>(at&63)&1 != 0 }
func (l *lattice) set(at int)      { l.bits[at>>6] |= 1 << (at & 63) }

// mark adds a load, cut to the most.
func (l *lattice) mark(v Load) { l.set(l.number(v.atMost(l.most))) }

// fill adds what lies within loads of the set.
func (l *lattice) fill() {
	l.set(0)
	for k, stride := range l.stride {
		block := stride * l.radix[k]
		for base := 0; base < l.size; base += block {
			for at := base + block - 1; at >= base+stride; at-- {
				if l.has(at) {
					l.set(at - stride)
				}
			}
		}
	}
}

// maximal are the loads of the set that lie within no other.
func (l *lattice) maximal() (all []Load) {
	for at := range l.size {
		if !l.has(at) {
			continue
		}
		v, top := l.load(at), true
		for k, i := range l.models {
			if v.Of(i) < l.radix[k]-1 && l.has(at+l.stride[k]) {
				top = false
				break
			}
		}
		if top {
			all = append(all, v)
		}
	}
	return all
}
