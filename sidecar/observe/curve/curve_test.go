// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/observe/curve"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestBatches(t *testing.T) {
	require.Equal(t, []int{1}, curve.Batches(0))
	require.Equal(t, []int{1, 2, 3, 4, 5}, curve.Batches(5))
	b := curve.Batches(1000)
	require.Less(t, len(b), 80)
	require.Equal(t, 1000, b[len(b)-1])
}

// truth is what executions take where nothing disturbs them.
type truth func(rows int) time.Duration

// straight is a line, as Symphony's profiles are; knee takes half as long again from nine
// rows on; steps is flat within eight rows.
func straight(rows int) time.Duration {
	return 25*time.Millisecond + time.Duration(rows)*6*time.Millisecond
}

func knee(rows int) time.Duration {
	if rows > 8 {
		return straight(rows) * 3 / 2
	}
	return straight(rows)
}

func steps(rows int) time.Duration {
	return 10*time.Millisecond + time.Duration((rows+7)/8)*12*time.Millisecond
}

// shape is the truth times a factor as a shape.
func (l truth) shape(factor, bound float64) []curve.Shape {
	s := curve.Shape{Source: curve.Declared}
	for _, rows := range []int{1, 32} {
		s.Points = append(s.Points, curve.ShapePoint{Rows: rows, Microseconds: factor * float64(l(rows).Microseconds()), Bound: bound})
	}
	return []curve.Shape{s}
}

// run executes sizes in turn, each so many times a second, from one second to another, with
// 2% of noise, slowed down by a factor that depends on the size.
func (l truth) run(c *curve.Curve, random *rand.Rand, from, to, each int, slow func(rows int) float64, sizes ...int) {
	for second := from; second < to; second++ {
		for i := range each {
			at := start.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/time.Duration(each))
			for _, rows := range sizes {
				c.Observe(rows, time.Duration(float64(l(rows))*slow(rows)*(1+.02*random.NormFloat64())), at)
			}
		}
	}
}

func undisturbed(int) float64 { return 1 }
func threefold(int) float64   { return 3 }
func onlyOf(size int) func(int) float64 {
	return func(rows int) float64 {
		if rows == size {
			return 3
		}
		return 1
	}
}

func (l truth) calibrate(c *curve.Curve, slow func(int) float64, second int) {
	var all []curve.Sample
	for rows := 1; rows <= 32; rows *= 2 {
		for range 3 {
			all = append(all, curve.Sample{Rows: rows, Took: time.Duration(float64(l(rows)) * slow(rows))})
		}
	}
	c.Calibrate(all, start.Add(time.Duration(second)*time.Second))
}

// off is by how much a curve differs from the truth at one size.
func (l truth) off(t *testing.T, c *curve.Curve, second int, shapes []curve.Shape, rows int) float64 {
	t.Helper()
	learnt := c.Learn(start.Add(time.Duration(second)*time.Second), shapes, 32)
	require.True(t, learnt.Usable, learnt.Why)
	return learnt.At(rows).Mean/float64(l(rows).Microseconds()) - 1
}

// TestDisturbances: 20 s after a disturbance of 5 s every size that is executed is within 3%
// of the truth, and no size that is not executed is believed to take half as long again.
func TestDisturbances(t *testing.T) {
	for name, l := range map[string]truth{"line": straight, "knee": knee, "steps": steps} {
		for prior, shapes := range map[string][]curve.Shape{
			"nothing declared": nil, "declared": l.shape(1, .1), "declared a fifth too long": l.shape(1.2, .1), "declared a fifth too short": l.shape(.8, .1),
		} {
			for calibration, calibrate := range map[string]func(*curve.Curve){
				"not calibrated": func(*curve.Curve) {},
				"calibrated":     func(c *curve.Curve) { l.calibrate(c, undisturbed, 0) },
				"calibrated while disturbed": func(c *curve.Curve) {
					l.calibrate(c, threefold, 0)
				},
			} {
				for what, disturb := range map[string]func(c *curve.Curve, random *rand.Rand){
					"all sizes at the start": func(c *curve.Curve, random *rand.Rand) {
						l.run(c, random, 0, 5, 5, threefold, 1, 2, 3, 4, 6, 8, 12)
					},
					"all sizes later": func(c *curve.Curve, random *rand.Rand) {
						l.run(c, random, -30, 0, 5, undisturbed, 1, 2, 3, 4, 6, 8, 12)
						l.run(c, random, 0, 5, 5, threefold, 1, 2, 3, 4, 6, 8, 12)
					},
					"one size at the start": func(c *curve.Curve, random *rand.Rand) {
						l.run(c, random, 0, 5, 5, onlyOf(3), 1, 2, 3, 4, 6, 8, 12)
					},
					"one size later": func(c *curve.Curve, random *rand.Rand) {
						l.run(c, random, -30, 0, 5, undisturbed, 1, 2, 3, 4, 6, 8, 12)
						l.run(c, random, 0, 5, 5, onlyOf(3), 1, 2, 3, 4, 6, 8, 12)
					},
				} {
					for _, inUse := range [][]int{{1}, {1, 2}, {1, 2, 3, 4, 6, 8}} {
						t.Run(name+"/"+prior+"/"+calibration+"/"+what, func(t *testing.T) {
							var c curve.Curve
							random := rand.New(rand.NewPCG(1, 2))
							calibrate(&c)
							disturb(&c, random)
							l.run(&c, random, 5, 25, 2, undisturbed, inUse...)
							for _, rows := range inUse {
								require.InDelta(t, 0, l.off(t, &c, 25, shapes, rows), .03, "%d rows of %v", rows, inUse)
							}
							for _, rows := range []int{1, 2, 3, 4, 6, 8, 12} {
								require.Less(t, l.off(t, &c, 25, shapes, rows), .5, "%d rows, %v in use", rows, inUse)
							}
						})
					}
				}
			}
		}
	}
}

// TestSixSlowExecutions: six executions of one second that took 2.5 times as long outweigh
// neither what is declared nor the line through other sizes, and are forgotten soon.
func TestSixSlowExecutions(t *testing.T) {
	l := truth(straight)
	for name, shapes := range map[string][]curve.Shape{"declared": l.shape(1, .1), "nothing declared": nil} {
		t.Run(name, func(t *testing.T) {
			var c curve.Curve
			random := rand.New(rand.NewPCG(5, 6))
			l.run(&c, random, 0, 10, 5, undisturbed, 1, 2)
			for i := range 6 {
				c.Observe(3, l(3)*5/2, start.Add(10*time.Second+time.Duration(i)*110*time.Millisecond))
			}
			require.Less(t, l.off(t, &c, 11, shapes, 3), .5)
			require.Less(t, l.off(t, &c, 11, shapes, 8), .35)
			l.run(&c, random, 11, 26, 5, undisturbed, 1, 2)
			for _, rows := range []int{3, 8, 32} {
				require.InDelta(t, 0, l.off(t, &c, 26, shapes, rows), .05, "%d rows", rows)
			}
		})
	}
}

// TestShapesAreAveragedByTheirBounds, and yield to executions as these grow many.
func TestShapesAreAveragedByTheirBounds(t *testing.T) {
	l := truth(straight)
	declared, estimated := l.shape(1, .1)[0], l.shape(2, .3)[0]
	estimated.Source = curve.Estimated
	var c curve.Curve
	require.InDelta(t, 1, l.off(t, &c, 0, []curve.Shape{estimated}, 4), .01)
	both := l.off(t, &c, 0, []curve.Shape{declared, estimated}, 4)
	require.InDelta(t, .07, both, .01, "2^(1/10): ten to one")
	learnt := c.Learn(start, []curve.Shape{declared}, 32)
	conflict := c.Learn(start, []curve.Shape{declared, estimated}, 32)
	require.Greater(t, conflict.At(4).Bound/conflict.At(4).Mean, learnt.At(4).Bound/learnt.At(4).Mean, "where they differ less is known")
	before := 1.
	for seconds := 1; seconds <= 8; seconds++ {
		l.run(&c, rand.New(rand.NewPCG(1, 1)), seconds-1, seconds, 8, undisturbed, 4)
		off := l.off(t, &c, seconds, []curve.Shape{estimated}, 4)
		require.Less(t, off, before+.01)
		before = off
	}
	require.InDelta(t, 0, before, .02)
}

// TestWhereOnlyThePastIsSlowThereIsHope: the bound of a size that was calibrated on a disturbed
// machine reaches down to the line of the sizes that are executed, and that of an executed one does not.
func TestWhereOnlyThePastIsSlowThereIsHope(t *testing.T) {
	l := truth(straight)
	var c curve.Curve
	l.calibrate(&c, func(rows int) float64 {
		if rows > 4 {
			return 2.5
		}
		return 1
	}, 0)
	l.run(&c, rand.New(rand.NewPCG(1, 1)), 0, 20, 5, undisturbed, 1, 2, 3)
	learnt := c.Learn(start.Add(20*time.Second), nil, 32)
	unknown, known := learnt.At(8), learnt.At(3)
	require.Less(t, unknown.Mean-unknown.Bound, 1.1*float64(l(8).Microseconds()))
	require.Less(t, known.Bound, .1*known.Mean)
}

// TestWhatIsKnownGetsOld: after traffic has ended there is a time at which what is known of
// a size is many old seconds and no fresh one. All the values are still numbers then.
func TestWhatIsKnownGetsOld(t *testing.T) {
	l := truth(straight)
	var c curve.Curve
	random := rand.New(rand.NewPCG(1, 1))
	l.run(&c, random, 0, 5, 5, undisturbed, 1, 4)
	l.run(&c, random, 5, 60, 5, undisturbed, 1)
	for second := 60; second < 1000; second++ {
		learnt := c.Learn(start.Add(time.Duration(second)*time.Second), nil, 32)
		for _, rows := range []int{1, 2, 4, 32} {
			e := learnt.At(rows)
			require.Positive(t, e.Mean, "%d rows after %d s", rows, second)
			require.Positive(t, e.Bound, "%d rows after %d s", rows, second)
			require.InDelta(t, float64(l(rows).Microseconds()), e.Mean, float64(l(rows).Microseconds())/2, "%d rows after %d s", rows, second)
		}
	}
}
