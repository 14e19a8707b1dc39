// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const azure = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,600,0,60\no,a,g,timer,0,1,0\n"

func TestAzure(t *testing.T) {
	functions, err := workload.ReadAzure(strings.NewReader(azure))
	require.NoError(t, err)
	require.Len(t, functions, 2)
	require.Equal(t, workload.Counts{Owner: "o", App: "a", Function: "g", Trigger: "timer", PerMinute: []int{0, 1, 0}}, functions[1])

	s, err := functions[0].Stream(4, 1, 1, workload.Seed(1, "arrivals", "f"))
	require.NoError(t, err)
	var perMinute [3]int
	halves := 0
	for _, a := range collect(t, s, time.Hour) {
		perMinute[a.At/time.Minute]++
		require.EqualValues(t, 4, a.Model)
		if a.At < 30*time.Second {
			halves++
		}
	}
	require.Equal(t, [3]int{600, 0, 60}, perMinute)
	require.InDelta(t, 300, halves, 60, "evenly over the minute")

	// Ten times as fast, a tenth of the invocations.
	s, err = functions[0].Stream(0, .1, 10, workload.Seed(1, "arrivals", "f"))
	require.NoError(t, err)
	all := collect(t, s, time.Hour)
	require.Len(t, all, 66)
	require.Less(t, all[len(all)-1].At, 18*time.Second)
}

func TestAzureErrorsNameTheLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":     {"", "the file is empty"},
		"header":    {"HashOwner,HashApp,Function,Trigger,1\n", "line 1: column 3 must be HashFunction"},
		"minutes":   {"HashOwner,HashApp,HashFunction,Trigger,1,3\n", `line 1: column 6 must be the minute 2, not "3"`},
		"no lines":  {"HashOwner,HashApp,HashFunction,Trigger,1\n", "no function"},
		"count":     {"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,t,1,2\no,a,f,t,1,-2\n", `line 3: minute 2 has "-2"`},
		"too short": {"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,t,1\n", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := workload.ReadAzure(strings.NewReader(c.text))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestList(t *testing.T) {
	text := "# a comment\ntime,model,deadline,rows\n0.5,a\n0.5,b,0.025,4\n2,a,,2\n"
	l := workload.NewList(strings.NewReader(text), map[string]int32{"a": 0, "b": 1})
	require.Equal(t, []workload.Arrival{
		{At: 500 * time.Millisecond, Rows: 1},
		{At: 500 * time.Millisecond, Model: 1, Rows: 4, Deadline: 25 * time.Millisecond},
		{At: 2 * time.Second, Rows: 2},
	}, collect(t, l, time.Hour))
}

func TestListErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"1,a\n0.5,a\n":   "line 2: time 0.5 is before the line above",
		"1,a\n2,c\n":     `line 2: model "c" is not one of the scenario's`,
		"1\n":            "line 1: 1 fields",
		"1,a\n\nx,a\n":   `line 3: time "x" is no number of seconds`,
		"1,a,-1\n":       `line 1: deadline "-1"`,
		"1,a,1,0\n":      `line 1: "0" is no number of rows`,
		"1,\"a\n":        "line 1",
		"1e300,a\n":      `line 1: time "1e300"`,
		"NaN,a\n":        `line 1: time "NaN"`,
		"1,a,1,1,junk\n": "line 1: 5 fields",
	} {
		l := workload.NewList(strings.NewReader(text), map[string]int32{"a": 0})
		var a workload.Arrival
		for l.Next(&a) {
		}
		require.ErrorContains(t, l.Err(), want, "%q", text)
	}
}

// record writes a trace of two models.
func record(t testing.TB, arrivals []workload.Arrival) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := workload.NewWriter(&file, workload.Header{Start: time.Unix(1e9, 0).UTC(), Source: "test"})
	require.NoError(t, err)
	for i, name := range []string{"a", "b"} {
		n, err := w.Model(workload.TraceModel{Name: name, SLO: 25 * time.Millisecond})
		require.NoError(t, err)
		require.EqualValues(t, i, n)
	}
	for _, a := range arrivals {
		require.NoError(t, w.Write(a))
	}
	require.NoError(t, w.Flush())
	return file.Bytes()
}

// TestRecordedTraceComesBack: whatever was written is read, also where two arrived in the other order.
func TestRecordedTraceComesBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		micros := func(from, to int) *rapid.Generator[time.Duration] {
			return rapid.Map(rapid.IntRange(from, to), func(us int) time.Duration { return time.Duration(us) * time.Microsecond })
		}
		arrivals := rapid.SliceOf(rapid.Custom(func(rt *rapid.T) workload.Arrival {
			return workload.Arrival{
				At: micros(0, 1e9).Draw(rt, "at"), Deadline: micros(0, 1e6).Draw(rt, "deadline"), Model: rapid.Int32Range(0, 1).Draw(rt, "model"),
				Rows: rapid.Int32Min(1).Draw(rt, "rows"), Bytes: rapid.Int64Min(0).Draw(rt, "bytes"),
			}
		})).Draw(rt, "arrivals")
		r, err := workload.NewReader(bytes.NewReader(record(t, arrivals)))
		require.NoError(rt, err)
		require.Equal(rt, "test", r.Header.Source)
		var back []workload.Arrival
		for a := (workload.Arrival{}); r.Next(&a); {
			back = append(back, a)
		}
		require.NoError(rt, r.Err())
		require.Equal(rt, len(arrivals), len(back))
		for i := range back {
			require.Equal(rt, arrivals[i], back[i])
		}
		require.Equal(rt, []workload.TraceModel{{"a", 25 * time.Millisecond}, {"b", 25 * time.Millisecond}}[:len(r.Models())], r.Models())
	})
}

// TestReplay maps models by name and puts recorded requests in order.
func TestReplay(t *testing.T) {
	file := record(t, []workload.Arrival{{At: 2 * time.Millisecond}, {At: time.Millisecond, Model: 1, Rows: 3}})
	r, err := workload.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, []workload.Arrival{{At: 2 * time.Millisecond, Model: 7, Rows: 1}, {At: 2 * time.Millisecond, Model: 5, Rows: 3}},
		collect(t, workload.Trace(r, map[string]int32{"a": 7, "b": 5}), time.Hour))

	r, err = workload.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	s := workload.Trace(r, map[string]int32{"a": 0})
	var a workload.Arrival
	require.False(t, s.Next(&a))
	require.ErrorContains(t, s.Err(), `model "b" is not one of the scenario's`)
}

func TestATraceIsSmall(t *testing.T) {
	var arrivals []workload.Arrival
	for i := range 1000 {
		arrivals = append(arrivals, workload.Arrival{At: time.Duration(i) * 100 * time.Microsecond, Rows: 1, Bytes: 602112})
	}
	require.Less(t, len(record(t, arrivals)), 1000*9+200, "bytes")
}

func TestBrokenTraces(t *testing.T) {
	whole := record(t, []workload.Arrival{{At: time.Hour, Rows: 1000, Bytes: 1e6, Deadline: time.Second}})
	r, err := workload.NewReader(bytes.NewReader(whole[:len(whole)-1]))
	require.NoError(t, err)
	var a workload.Arrival
	require.False(t, r.Next(&a))
	require.ErrorIs(t, r.Err(), workload.ErrTruncated)
	require.ErrorContains(t, r.Err(), "entry 3")

	for _, text := range []string{"", "time,model\n", `{"format":"conch-trace","version":2}` + "\n", strings.Repeat("x", 1<<17)} {
		_, err := workload.NewReader(strings.NewReader(text))
		require.ErrorIs(t, err, workload.ErrNotATrace)
	}
	w, err := workload.NewWriter(io.Discard, workload.Header{})
	require.NoError(t, err)
	require.ErrorContains(t, w.Write(workload.Arrival{}), "there are 0 models")
	_, err = w.Model(workload.TraceModel{})
	require.ErrorContains(t, err, "a name has 1 to")
}

func FuzzAzure(f *testing.F) {
	f.Add(azure)
	f.Add("HashOwner,HashApp,HashFunction,Trigger,1\n,,,,9999999999999\n")
	f.Fuzz(func(t *testing.T, text string) {
		functions, err := workload.ReadAzure(strings.NewReader(text))
		if err != nil {
			require.ErrorContains(t, err, "azure trace: ")
			return
		}
		require.NotEmpty(t, functions)
		s, err := functions[0].Stream(0, 1, 1, workload.Seed(1, "arrivals", "f"))
		require.NoError(t, err)
		bounded(t, s)
	})
}

func FuzzList(f *testing.F) {
	f.Add("0.5,a\n1,a,.1,2\n")
	f.Add("time,model\n# x\n1,b\n")
	f.Fuzz(func(t *testing.T, text string) {
		bounded(t, workload.NewList(strings.NewReader(text), map[string]int32{"a": 0}))
	})
}

func FuzzTrace(f *testing.F) {
	f.Add(record(f, []workload.Arrival{{At: time.Second, Rows: 2}, {At: time.Millisecond, Model: 1, Deadline: time.Second}}))
	f.Add([]byte(`{"format":"conch-trace","version":1}` + "\n\x00\x01a\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := workload.NewReader(bytes.NewReader(file))
		if err != nil {
			require.ErrorIs(t, err, workload.ErrNotATrace)
			return
		}
		bounded(t, workload.Trace(r, map[string]int32{"a": 0, "b": 1}))
	})
}

// bounded reads the first arrivals of a stream: in order, within the range of times.
func bounded(t *testing.T, s workload.Stream) {
	last := time.Duration(0)
	var a workload.Arrival
	for n := 0; n < 1000 && s.Next(&a); n++ {
		require.GreaterOrEqual(t, a.At, last)
		require.GreaterOrEqual(t, a.Deadline, time.Duration(0))
		require.GreaterOrEqual(t, a.Rows, int32(1))
		last = a.At
	}
}

// A trace whose writer was killed is good up to there, if that is asked for.
func TestWholeEndsBeforeWhatWasCutOff(t *testing.T) {
	var file bytes.Buffer
	w, err := workload.NewWriter(&file, workload.Header{})
	require.NoError(t, err)
	n, err := w.Model(workload.TraceModel{Name: "m"})
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, w.Write(workload.Arrival{At: time.Duration(i) * time.Second, Model: n, Rows: 1}))
	}
	require.NoError(t, w.Flush())
	for name, cut := range map[string]func(workload.Stream) workload.Failing{"whole": workload.Whole, "as it is": func(s workload.Stream) workload.Failing { return s.(workload.Failing) }} {
		r, err := workload.NewReader(bytes.NewReader(file.Bytes()[:file.Len()-2]))
		require.NoError(t, err)
		s := cut(workload.Trace(r, map[string]int32{"m": 0}))
		count := 0
		e, err := workload.Measure(bytes.NewReader(file.Bytes()[:file.Len()-2]))
		require.NoError(t, err)
		require.Equal(t, workload.Extent{Models: []workload.TraceModel{{Name: "m"}}, Requests: 4, Length: 3*time.Second + 1, Truncated: true}, e)
		for a := (workload.Arrival{}); s.Next(&a); count++ {
		}
		require.Equal(t, 4, count, name)
		if name == "whole" {
			require.NoError(t, s.Err())
		} else {
			require.ErrorIs(t, s.Err(), workload.ErrTruncated)
		}
	}
}
