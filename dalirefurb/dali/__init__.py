"""The DALI pipelines: those of the two parts, and small ones that look at encoded samples."""

from dalirefurb.dali.graph import Feed as Feed
from dalirefurb.dali.graph import Graph as Graph
from dalirefurb.dali.graph import Input as Input
from dalirefurb.dali.graph import Part as Part
from dalirefurb.dali.graph import cut_window as cut_window
from dalirefurb.dali.graph import final_graph as final_graph
from dalirefurb.dali.graph import final_inputs as final_inputs
from dalirefurb.dali.graph import refuse_random as refuse_random
from dalirefurb.dali.runner import REPLICA_OPTIONS as REPLICA_OPTIONS
from dalirefurb.dali.runner import Decoder as Decoder
from dalirefurb.dali.runner import GraphError as GraphError
from dalirefurb.dali.runner import PipelineRunner as PipelineRunner
from dalirefurb.dali.runner import Replica as Replica
from dalirefurb.dali.runner import Replicas as Replicas
from dalirefurb.dali.runner import decoder as decoder
from dalirefurb.dali.runner import images_in as images_in
from dalirefurb.dali.runner import located as located
from dalirefurb.dali.runner import release_unused_memory as release_unused_memory
from dalirefurb.dali.runner import undecodable as undecodable
from dalirefurb.dali.runner import versions as versions
