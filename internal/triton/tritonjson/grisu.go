// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"math"
	"math/big"
	"math/bits"
	"sync"
)

// Doubles are printed with Grisu2 (Loitsch, "Printing Floating-Point Numbers Quickly and Accurately with Integers",
// PLDI 2010), because RapidJSON uses it: its digits always read back as the same double, but now and then they are not
// the closest or the fewest, and strconv's, which are, would then differ from the server's.

// scaled is f times two to the e.
type scaled struct {
	f uint64
	e int
}

func (x scaled) times(y scaled) scaled {
	high, low := bits.Mul64(x.f, y.f)
	return scaled{high + low>>63, x.e + y.e + 64}
}

func (x scaled) normalized() scaled {
	shift := bits.LeadingZeros64(x.f)
	return scaled{x.f << shift, x.e - shift}
}

const (
	fractionBits = 52
	hiddenBit    = uint64(1) << fractionBits
	firstPower   = -348 // exponents of ten of the cached powers
	powerStep    = 8
	powerCount   = 87
)

// cachedPowers are powers of ten, to 64 bits.
var cachedPowers = sync.OnceValue(func() *[powerCount]scaled {
	var table [powerCount]scaled
	for i := range table {
		exponent := int64(firstPower + powerStep*i)
		power := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(exponent, -exponent)), nil)
		x := new(big.Float).SetPrec(64).SetMode(big.ToNearestEven)
		if exponent >= 0 {
			x.SetInt(power)
		} else {
			x.Quo(big.NewFloat(1).SetPrec(64), new(big.Float).SetPrec(2000).SetInt(power))
		}
		e := x.MantExp(nil)
		f, _ := new(big.Float).SetMantExp(x, 64-e).Uint64()
		table[i] = scaled{f, e - 64}
	}
	return &table
})

// powerFor is a cached power that brings a number with binary exponent e into the range where digits come off easily,
// and the decimal exponent that undoes it.
func powerFor(e int) (power scaled, k int) {
	d := float64(-61-e)*0.30102999566398114 + 347
	n := int(d)
	if d > float64(n) {
		n++
	}
	index := n>>3 + 1
	return cachedPowers()[index], -(firstPower + index*powerStep)
}

// appendDigits appends the decimal digits of a positive finite double, which is those digits, as an integer, times ten
// to the k.
func appendDigits(dst []byte, f float64) (digits []byte, k int) {
	b := math.Float64bits(f)
	v := scaled{b & (hiddenBit - 1), 1 - 1075}
	if exponent := int(b >> fractionBits & 0x7FF); exponent != 0 {
		v = scaled{v.f + hiddenBit, exponent - 1075}
	}
	upper := scaled{v.f<<1 + 1, v.e - 1}.normalized()
	lower := scaled{v.f<<1 - 1, v.e - 1}
	if v.f == hiddenBit {
		lower = scaled{v.f<<2 - 1, v.e - 2}
	}
	lower = scaled{lower.f << (lower.e - upper.e), upper.e}

	power, k := powerFor(upper.e)
	w, high, low := v.normalized().times(power), upper.times(power), lower.times(power)
	low.f++
	high.f--
	return generate(dst, w, high, high.f-low.f, k)
}

const lastRounded = 9

var powersUint = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}

// generate takes digits off high until what is left is within delta, then steps back towards w.
func generate(dst []byte, w, high scaled, delta uint64, k int) ([]byte, int) {
	shift := -high.e
	one := uint64(1) << shift
	distance := high.f - w.f
	whole, fraction := high.f>>shift, high.f&(one-1)
	kappa := 1
	for kappa < 9 && whole >= powersUint[kappa] {
		kappa++
	}
	start := len(dst)
	for kappa > 0 {
		kappa--
		d := whole / powersUint[kappa]
		whole %= powersUint[kappa]
		if d != 0 || len(dst) > start {
			dst = append(dst, '0'+byte(d))
		}
		if rest := whole<<shift + fraction; rest <= delta {
			roundDigits(dst, delta, rest, powersUint[kappa]<<shift, distance)
			return dst, k + kappa
		}
	}
	for {
		fraction *= 10
		delta *= 10
		kappa--
		if d := fraction >> shift; d != 0 || len(dst) > start {
			dst = append(dst, '0'+byte(d))
		}
		if fraction &= one - 1; fraction < delta {
			unit := uint64(0)
			if -kappa < lastRounded { // so it is in the version that Triton has, and later digits stay as they are
				unit = powersUint[-kappa]
			}
			roundDigits(dst, delta, fraction, one, distance*unit)
			return dst, k + kappa
		}
	}
}

func roundDigits(digits []byte, delta, rest, unit, distance uint64) {
	for rest < distance && delta-rest >= unit && (rest+unit < distance || distance-rest > rest+unit-distance) {
		digits[len(digits)-1]--
		rest += unit
	}
}
