// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// keeping is how well a server keeps a model that it has loaded.
type keeping struct {
	loaded time.Time // when last
	lost   int       // how often in a row it was not ready any more soon after
	faults int       // how often in a row its executions failed after a load
	deaths int       // how often its process died of its first request
}

// repairs is how often in a row a model that did not stay ready is loaded again at
// once.
const repairs = 3

// lost handles a model that is no longer ready although conch did not unload it. The
// model is loaded again at once. A model that is lost more than repairs times in a row
// has failed.
func (l *loop) lost(v *server, model string) {
	key := decide.Load{Key: v.Key, Model: model, Revision: v.Loaded[model].Revision}
	delete(v.Loaded, model)
	l.r.o.Logger.Warn("a model was unloaded behind conch's back", "partition", v.Partition, "model", model)
	if l.want.Given {
		return
	}
	k := l.kept[key]
	if time.Since(k.loaded) >= l.r.o.Backoff.Stable {
		k.lost = 0
	}
	k.lost++
	l.kept[key] = k
	if k.lost <= repairs {
		return
	}
	err := &driver.LoadError{Model: model, Err: fmt.Errorf("the server has loaded it %d times and does not keep it ready", k.lost)}
	l.loads[key] = decide.Failure{Attempts: k.lost, Reason: err.Error(), Next: time.Now().Add(l.r.o.Backoff.delay(k.lost - repairs))}
	l.errs[key] = err
}

// deadly is how many servers a model may kill.
const deadly = 3

// giveUp has a model that killed too many servers not tried again.
func (l *loop) giveUp(f *decide.Failure) {
	if f.Deaths >= deadly {
		f.Next = time.Time{}
		f.Reason = fmt.Sprintf("%d servers died in its load, so that it is not tried again before its files change or an operator orders it: %s", f.Deaths, f.Reason)
	}
}
