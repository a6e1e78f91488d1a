package cron

import "sync"

// Specs is a cache of the specifications parsed last, by their texts: parsing one may read the database of time zones.
// It is safe for concurrent use.
type Specs struct {
	mu     sync.Mutex
	byText map[string]Spec
}

// mostSpecs limits the cached specifications: some hundred bytes each.
const mostSpecs = 1000

// Parse returns the specification of a text, as the function Parse does.
func (s *Specs) Parse(text string) (Spec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec, ok := s.byText[text]; ok {
		return spec, nil
	}
	spec, err := Parse(text)
	if err != nil {
		return spec, err
	}
	if s.byText == nil || len(s.byText) >= mostSpecs {
		s.byText = map[string]Spec{}
	}
	s.byText[text] = spec
	return spec, nil
}
