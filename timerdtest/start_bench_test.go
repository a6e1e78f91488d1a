package timerdtest

import "testing"

// The start of a timerd with its servers.
func BenchmarkStart(b *testing.B) {
	for range b.N {
		r, err := start(b.Context(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := r.close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
