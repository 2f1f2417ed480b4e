package daemon

import "github.com/prometheus/client_golang/prometheus"

// diskCollector shows the space on the disks of a server's folders, so that a disk that fills up is seen before it is full.
type diskCollector struct{ folders []string }

var (
	diskSizeDesc = prometheus.NewDesc("fs_size_bytes", "Size of the file system that a folder of this server is on.", []string{"folder"}, nil)
	diskFreeDesc = prometheus.NewDesc("fs_free_bytes", "What may still be written to the file system that a folder of this server is on.", []string{"folder"}, nil)
)

// Describe implements prometheus.Collector.
func (c *diskCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- diskSizeDesc
	ch <- diskFreeDesc
}

// Collect implements prometheus.Collector. A folder that can't be asked is left out.
func (c *diskCollector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.folders {
		size, free, err := diskSpace(f)
		if err != nil {
			continue
		}
		ch <- prometheus.MustNewConstMetric(diskSizeDesc, prometheus.GaugeValue, float64(size), f)
		ch <- prometheus.MustNewConstMetric(diskFreeDesc, prometheus.GaugeValue, float64(free), f)
	}
}
