# store.pxd - the expert store as an object; moegg.engine.forward takes its pointer.
from libc.stdint cimport int32_t, int64_t

from moegg.kernels.store_c cimport mg_io_error, mg_store


cdef class Store:
    cdef mg_store *ptr
    cdef int32_t flag                    # non-zero: waits end
    cdef readonly str path
    cdef readonly list numbers           # decoder layers that have records
    cdef readonly bint cycle             # records are layers of a dense model
    cdef readonly int64_t count          # records in all
    cdef fail(self, mg_io_error *e)
    cdef raise_for(self, int status)
