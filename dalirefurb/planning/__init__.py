"""What each epoch serves, computes and reuses: planners, shuffles, AutoAssist."""

from dalirefurb.planning.auto_assist import AutoAssist as AutoAssist
from dalirefurb.planning.batch_plan import BatchPlan as BatchPlan
from dalirefurb.planning.echo import BatchEcho as BatchEcho
from dalirefurb.planning.echo import Echo as Echo
from dalirefurb.planning.evaluate import Evaluate as Evaluate
from dalirefurb.planning.fresh import Fresh as Fresh
from dalirefurb.planning.planner import DerivedPlanner as DerivedPlanner
from dalirefurb.planning.planner import Planner as Planner
from dalirefurb.planning.refurbish import Frozen as Frozen
from dalirefurb.planning.refurbish import Refurbish as Refurbish
from dalirefurb.planning.refurbish import Standard as Standard
from dalirefurb.planning.smart_cache import SmartCache as SmartCache
