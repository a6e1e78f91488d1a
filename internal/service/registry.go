package service

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// registry holds the metrics of the process and timerd's own, whose names begin with timerd_.
type registry struct {
	*prometheus.Registry
	own promauto.Factory
}

func newRegistry() registry {
	all := prometheus.NewRegistry()
	all.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry{all, promauto.With(prometheus.WrapRegistererWithPrefix("timerd_", all))}
}

func (r registry) counter(name, help string) prometheus.Counter {
	return r.own.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (r registry) counters(name, help, label string) *prometheus.CounterVec {
	return r.own.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

func (r registry) gauge(name, help string) prometheus.Gauge {
	return r.own.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (r registry) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return r.own.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// asked registers a gauge with a function called at each scrape.
func (r registry) asked(name, help string, labels prometheus.Labels, value func() float64) {
	r.own.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

func (r registry) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return r.own.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

// oneIf returns 1 for yes, 0 for no.
func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// counting exports a counter for each known value of its label, and returns the function that counts one of a value.
func counting[V ~string](c *prometheus.CounterVec, known ...V) func(V) {
	for _, v := range known {
		c.WithLabelValues(string(v))
	}
	return func(v V) { c.WithLabelValues(string(v)).Inc() }
}
