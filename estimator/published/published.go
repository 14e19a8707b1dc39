// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package published

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/regress"
	"github.com/conch-serving/conch/internal/onnx/shape"
	"github.com/conch-serving/conch/internal/zoo"
)

// sampler lowers graphs for batches, each once.
type sampler struct {
	fsys     fs.FS
	folder   string
	runtime  lower.Runtime
	float    kernel.Precision
	launches map[string][]lower.Launch
	bytes    map[string]float64
}

func (s *sampler) lower(model string, batch int) (launches []lower.Launch, bytes float64, err error) {
	key := fmt.Sprintf("%s/%d", model, batch)
	if l := s.launches[key]; l != nil {
		return l, s.bytes[key], nil
	}
	g, err := data.Graph(s.fsys, s.folder+"/"+model)
	if err != nil {
		return nil, 0, err
	}
	for _, b := range []int{1, 2, 4, 8, 16, 32} {
		shapes, _, err := estimator.FeedShapes(g, estimator.Declared{}, b)
		if err != nil {
			return nil, 0, err
		}
		r, err := g.Infer(shapes)
		if err != nil {
			return nil, 0, err
		}
		at := fmt.Sprintf("%s/%d", model, b)
		s.launches[at] = lower.Lower(r, lower.Options{Runtime: s.runtime, Float: s.float})
		for _, v := range g.Feeds {
			t := shape.Tensor{Type: v.Type.Elem, Dims: shapes[v.Name]}
			s.bytes[at] += t.Bytes()
		}
	}
	return s.launches[key], s.bytes[key], nil
}

func newSampler(fsys fs.FS, folder string, rt lower.Runtime, float kernel.Precision) *sampler {
	return &sampler{fsys, folder, rt, float, map[string][]lower.Launch{}, map[string]float64{}}
}

// Shares are the samples of GPU/shares.csv: torchvision's models at batches and thread percentages.
func Shares(fsys fs.FS, gpuName string, rt lower.Runtime) ([]estimator.Sample, error) {
	return torchvision(fsys, gpuName+"/shares.csv", rt)
}

// Unseen are the samples of v100/unseen.csv: models of the same measurements with the whole GPU, none of which any fit has seen.
func Unseen(fsys fs.FS) ([]estimator.Sample, error) {
	return torchvision(fsys, "v100/unseen.csv", lower.Eager())
}

func torchvision(fsys fs.FS, name string, rt lower.Runtime) ([]estimator.Sample, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, err
	}
	s := newSampler(fsys, "torchvision", rt, kernel.FP32)
	var all []estimator.Sample
	for i, row := range rows[1:] {
		batch, err1 := strconv.Atoi(row[1])
		percentage, err2 := strconv.Atoi(row[2])
		us, err3 := strconv.ParseFloat(row[3], 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, i+2, err)
		}
		l, bytes, err := s.lower(row[0], batch)
		if err != nil {
			return nil, err
		}
		all = append(all, estimator.Sample{Model: row[0], Batch: batch, Launches: l, Bytes: bytes, Share: float64(percentage) / 100, Seconds: us * 1e-6})
	}
	return all, nil
}

// Halves splits samples by model: every second name in alphabetical order is fitted, the others are judged.
func Halves(all []estimator.Sample) (fit, judge []estimator.Sample) {
	names := map[string]bool{}
	for _, s := range all {
		names[s.Model] = true
	}
	order := []string{}
	for n := range names {
		order = append(order, n)
	}
	slices.Sort(order)
	for _, s := range all {
		if slices.Index(order, s.Model)%2 == 0 {
			fit = append(fit, s)
		} else {
			judge = append(judge, s)
		}
	}
	return fit, judge
}

// Thin keeps some shares of every curve, which is enough to fit and quicker.
func Thin(all []estimator.Sample) []estimator.Sample {
	var some []estimator.Sample
	for _, s := range all {
		if slices.Contains([]float64{.1, .2, .3, .4, .5, .75, 1}, s.Share) {
			some = append(some, s)
		}
	}
	return some
}

// Zoo are the samples of Symphony's tables 3 and 4 whose architecture is among graphs/keras: beta + alpha b at batches 1 to 32, with the whole GPU. The
// tables have lines through all batch sizes; lines says that predictions are compared as such.
func Zoo(fsys fs.FS, gpuType string, rt lower.Runtime, lines bool) ([]estimator.Sample, error) {
	profiles, err := zoo.Profiles(gpuType)
	if err != nil {
		return nil, err
	}
	s := newSampler(fsys, "keras", rt, precisionOf(gpuType))
	var all []estimator.Sample
	for _, p := range profiles {
		for _, b := range []int{1, 2, 4, 8, 16, 32} {
			l, bytes, err := s.lower(p.Model, b)
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return nil, err
			}
			all = append(all, estimator.Sample{Model: p.Model, Batch: b, Launches: l, Bytes: bytes, Share: 1, Seconds: p.Latency(b).Seconds(), Line: lines})
		}
	}
	return all, nil
}

// Family is the family of a model of keras.applications: what is left out together.
func Family(model string) string {
	for _, f := range []string{"EfficientNetV2", "EfficientNet", "DenseNet", "InceptionResNet", "ResNet", "MobileNet", "VGG", "Inception", "Xception"} {
		if strings.HasPrefix(model, f) {
			return f
		}
	}
	return model
}

// FamilyOf is the family of a model of torchvision.
func FamilyOf(model string) string {
	return strings.TrimRight(strings.SplitN(model, "_", 2)[0], "0123456789")
}

// Prior is how strongly a fit is drawn to where it starts.
const Prior = .003

// ZooRuntime is what the zoo's measurements ran in.
func ZooRuntime() lower.Runtime { return lower.TensorFlow() }

// ZooStart is where fits to the zoo start: the priors, without what they have of the zoo.
func ZooStart(rt lower.Runtime) estimator.Factors {
	f := estimator.Priors(rt)
	f.Direct = 2.2
	return f
}

// precisionOf is the arithmetic that a framework of the zoo's time chose: TF32 on the GPU that has it.
func precisionOf(gpuType string) kernel.Precision {
	if gpuType == zoo.A100 {
		return kernel.TF32
	}
	return kernel.FP32
}

// Uses reads GPU/utilisation.csv of two GPU types: the features of gpulet's models and what a profiler measured of each, as samples of three targets.
func Uses(fsys fs.FS, kernels *kernel.Model) (creq, l2, bandwidth *regress.Samples, err error) {
	creq, l2, bandwidth = &regress.Samples{}, &regress.Samples{}, &regress.Samples{}
	for _, gpuName := range []string{"2080ti", "rtx3080"} {
		sheet, err := gpu.Find(gpuName)
		if err != nil {
			return nil, nil, nil, err
		}
		text, err := fs.ReadFile(fsys, gpuName+"/utilisation.csv")
		if err != nil {
			return nil, nil, nil, err
		}
		rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil {
			return nil, nil, nil, err
		}
		d := &estimator.Device{Sheet: sheet, Kernels: kernels, Runtime: lower.Eager(), Factors: estimator.Priors(lower.Eager())}
		for i, row := range rows[1:] {
			var v [5]float64
			for j := 1; j < 5; j++ {
				if v[j], err = strconv.ParseFloat(row[j], 64); err != nil {
					return nil, nil, nil, fmt.Errorf("%s/utilisation.csv, line %d: %w", gpuName, i+2, err)
				}
			}
			launches, err := launchesOf(fsys, row[0], int(v[1]))
			if err != nil {
				return nil, nil, nil, err
			}
			names, features := estimator.UseFeatures(d, launches)
			for k, s := range []*regress.Samples{creq, l2, bandwidth} {
				s.Names = names
				s.X, s.Y, s.Groups = append(s.X, features), append(s.Y, v[2+k]/100), append(s.Groups, row[0])
			}
		}
	}
	return creq, l2, bandwidth, nil
}

// launchesOf lowers a model of torchvision, or of the other graphs.
func launchesOf(fsys fs.FS, model string, batch int) ([]lower.Launch, error) {
	g, err := data.Graph(fsys, "torchvision/"+model)
	if errors.Is(err, fs.ErrNotExist) {
		g, err = data.Graph(fsys, "other/"+model)
	}
	if err != nil {
		return nil, err
	}
	shapes, _, err := estimator.FeedShapes(g, estimator.Declared{}, batch)
	if err != nil {
		return nil, err
	}
	r, err := g.Infer(shapes)
	if err != nil {
		return nil, err
	}
	return lower.Lower(r, lower.Options{Runtime: lower.Eager()}), nil
}

// UseOptions are those of the regressors of utilisations, which have few samples.
func UseOptions() regress.Options {
	return regress.Options{Seed: 1, Centres: 48, LassoPenalty: .005, RidgePenalty: .2, Boost: regress.BoostOptions{Trees: 60, Depth: 2, LeastLeaf: 8}}
}

// SharesTensorRT are the samples of V100/shares-tensorrt.csv of one source.
func SharesTensorRT(fsys fs.FS, source string) ([]estimator.Sample, error) {
	text, err := fs.ReadFile(fsys, "v100/shares-tensorrt.csv")
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	s := newSampler(fsys, "torchvision", lower.TensorRT(), kernel.FP32)
	var all []estimator.Sample
	for i, row := range rows[1:] {
		if row[0] != source {
			continue
		}
		batch, err1 := strconv.Atoi(row[2])
		percentage, err2 := strconv.Atoi(row[3])
		us, err3 := strconv.ParseFloat(row[4], 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("v100/shares-tensorrt.csv, line %d: %w", i+2, err)
		}
		l, in, err := s.lower(row[1], batch)
		if err != nil {
			return nil, err
		}
		all = append(all, estimator.Sample{Model: row[1], Batch: batch, Launches: l, Bytes: in, Share: float64(percentage) / 100, Seconds: us * 1e-6})
	}
	return all, nil
}
